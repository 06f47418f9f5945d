"""Look at reports in Chromium: screenshots wide, on a phone and dark, console messages, and what axe-core finds.

    python scripts/look.py report.html ... --out shots     writes NAME-1280.png, NAME-390.png and NAME-dark.png

Needs Chromium on the PATH. axe-core is optional: `npm install axe-core` in any folder, then --axe FOLDER, or the file
axe.min.js itself. Exit code 1 if a page writes to the console, names another address, has 3 MB or more, or if axe-core
finds a serious violation.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FORMS = {"1280": (1280, "light"), "390": (390, "light"), "dark": (1280, "dark")}
HEIGHT = 5000  # pixels of a report that are shown
LARGEST = 3_000_000  # bytes
SERIOUS = ("serious", "critical")
QUIET = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-quic", "--enable-logging=stderr"),
]
# Virtual time ends when nothing is waiting any more; without it a screenshot is taken before axe-core is done.
SECONDS = 120
AXE = """<script>{source}</script><script>
document.querySelectorAll("details").forEach((one) => {{ one.open = true; }});
axe.run({{ resultTypes: ["violations"] }}).then((found) => console.log("axe-core: " + JSON.stringify({{
  rules: found.passes.length,
  violations: found.violations.map((one) => [one.impact, one.id, one.nodes.length, one.nodes[0].html.slice(0, 160)]),
}})));
</script></body>"""


def shoot(chromium: str, report: Path, width: int, scheme: str, picture: Path | None) -> list[str]:
    """Show a report in a frame, as a window of Chromium cannot be as narrow as a phone; returns console messages."""
    frame = f'<iframe src="{report.resolve().as_uri()}" width="{width}" height="{HEIGHT}" style="border:0"></iframe>'
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "frame.html"
        page.write_text(f'<!DOCTYPE html><body style="margin:0; color-scheme:{scheme}">{frame}</body>', "utf-8")
        command = [chromium, *QUIET, f"--user-data-dir={folder}/profile", f"--window-size={max(width, 500)},{HEIGHT}"]
        command += [f"--virtual-time-budget={1000 * SECONDS}"]
        command += [f"--screenshot={picture.resolve()}"] if picture else ["--dump-dom"]
        done = subprocess.run([*command, page.as_uri()], check=True, capture_output=True)
    said = done.stderr.decode(errors="replace")
    return re.findall(r'CONSOLE[^\]]*\] "(.*)", source: ', said)


def accessible(chromium: str, report: Path, axe: str, width: int, scheme: str) -> list[str]:
    """The violations that axe-core finds, with every fold open; in a copy of the page that has the library inside."""
    text, end = report.read_text(encoding="utf-8"), AXE.format(source=axe)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / report.name
        copy.write_text(end.join(text.rsplit("</body>", 1)), encoding="utf-8")
        messages = shoot(chromium, copy, width, scheme, None)
    found = [one.removeprefix("axe-core: ") for one in messages if one.startswith("axe-core: ")]
    if not found:
        return ["critical: axe-core did not finish"]
    told = json.loads(found[0])
    return [f"{impact}: {rule}, {count} times, as in {html}" for impact, rule, count, html in told["violations"]]


def faults(report: Path) -> list[str]:
    """What is wrong with the file itself."""
    text = report.read_text(encoding="utf-8")
    outside = [address for address in re.findall(r'(?:src|href)="([^"]*)"', text) if "http" in address]
    size = report.stat().st_size
    return [f"names {one}" for one in outside] + ([f"has {size:,} bytes"] if size >= LARGEST else [])


def axe_source(place: Path | None) -> str | None:
    if place is None:
        return None
    known = [place, place / "axe.min.js", place / "axe-core/axe.min.js", place / "node_modules/axe-core/axe.min.js"]
    for path in known:
        if path.is_file():
            return path.read_text(encoding="utf-8")
    sys.exit(f"error: no axe-core in {place}; `npm install axe-core` there")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", nargs="+", type=Path, metavar="REPORT")
    parser.add_argument("--out", type=Path, default=Path("shots"), help="folder for the pictures")
    parser.add_argument("--axe", type=Path, help="folder of axe-core, or its file axe.min.js")
    given = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("error: no chromium on the PATH; Debian: apt-get install chromium")
    axe, bad = axe_source(given.axe), 0
    given.out.mkdir(parents=True, exist_ok=True)
    for report in given.reports:
        wrong = faults(report)
        for name, (width, scheme) in FORMS.items():
            picture = given.out / f"{report.stem}-{name}.png"
            wrong += [f"{name}: console: {one}" for one in shoot(chromium, report, width, scheme, picture)]
            found = accessible(chromium, report, axe, width, scheme) if axe else []
            wrong += [f"{name}: {one}" for one in found if one.startswith(SERIOUS)]
            print(picture, *(f"  {one}" for one in found if not one.startswith(SERIOUS)), sep="\n")
        print(f"{report}: {len(wrong)} faults", *(f"  {one}" for one in wrong), sep="\n")
        bad += len(wrong)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
