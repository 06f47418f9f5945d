"""Fill the template and write the page."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atent import __version__
from atent.errors import UserError
from atent.page.gather import gather
from atent.page.parts import Part
from atent.page.sections import Page, page_of
from atent.storage.files import write_atomically

TEMPLATE = Path(__file__).parent / "template"


def render(page: Page) -> str:
    """The page as HTML. Every text is escaped; only our own style, script and figures are not."""
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
        from markupsafe import Markup
    except ImportError:
        raise UserError("a report needs Jinja2; it is in the extra `report`: pip install 'atent[report]'") from None
    loader = FileSystemLoader(TEMPLATE, encoding="utf-8")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.tests["part"] = _is_part
    own = {name: Markup((TEMPLATE / f"page.{name}").read_text(encoding="utf-8")) for name in ("css", "js")}
    return environment.get_template("page.html").render(page=page, version=__version__, markup=Markup, **own).lstrip()


def _is_part(part: Part, kind: str) -> bool:
    return type(part).__name__ == kind


def write_report(folders: Sequence[Path], out: Path) -> Path:
    """Write the report of these run folders to one HTML file; it is complete or not there."""
    if out.is_dir():
        raise UserError(f"--out {out} is a folder; allowed: the path of a file, such as report.html")
    content: Any = render(page_of(gather(folders))).encode("utf-8", "replace")
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, content)
    return out
