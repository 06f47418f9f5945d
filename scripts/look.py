"""Take screenshots of reports, to look at them: wide, on a phone, and dark. Needs Chromium on the PATH.

python scripts/look.py report.html ... --out shots     writes NAME-1280.png, NAME-390.png and NAME-dark.png
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FORMS = {"1280": (1280, "light"), "390": (390, "light"), "dark": (1280, "dark")}
HEIGHT = 5000  # pixels of a report that are shown


def shoot(chromium: str, report: Path, out: Path) -> None:
    """Each form is a page with the report in a frame: a window of Chromium cannot be as narrow as a phone."""
    for name, (width, scheme) in FORMS.items():
        frame = (
            f'<iframe src="{report.resolve().as_uri()}" width="{width}" height="{HEIGHT}" style="border:0"></iframe>'
        )
        body = f'<body style="margin:0; color-scheme:{scheme or "light"}">{frame}</body>'
        with tempfile.TemporaryDirectory() as folder:
            page, picture = Path(folder) / "frame.html", out / f"{report.stem}-{name}.png"
            page.write_text(f"<!DOCTYPE html>{body}", encoding="utf-8")
            command = [chromium, "--headless", "--no-sandbox", "--hide-scrollbars", f"--user-data-dir={folder}/profile"]
            command += [f"--window-size={max(width, 500)},{HEIGHT}", f"--screenshot={picture.resolve()}"]
            subprocess.run([*command, page.as_uri()], check=True, capture_output=True)
        print(picture)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reports", nargs="+", type=Path, metavar="REPORT")
    parser.add_argument("--out", type=Path, default=Path("shots"), help="folder for the pictures")
    given = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("error: no chromium on the PATH; Debian: apt-get install chromium")
    given.out.mkdir(parents=True, exist_ok=True)
    for report in given.reports:
        shoot(chromium, report, given.out)


if __name__ == "__main__":
    main()
