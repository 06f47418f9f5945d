"""Hooks of mkdocs: the Markdown pages in the repository's root become pages of the site, with links that work there.

Links in the repository are relative to their file, as code hosts expect. On the site, a link to another page leads to
that page; a link to any other file of the repository (`results/`, a licence) becomes plain text, since the site does
not contain the file.
"""

import ast
import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": "index.md"} | {name: name for name in ("LOG.md", "CHANGELOG.md", "CONTRIBUTING.md")}
LINK = re.compile(r"(!?)\[([^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*)\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 (mkdocs')
    name = page.file.src_uri
    sources = {site: source for source, site in PAGES.items()}
    markdown = markdown.replace("<!-- public names -->", public_names())
    return rewritten(markdown, sources.get(name, f"docs/{name}"), name)


def public_names() -> str:
    """A line for each module that `__init__.pyi` imports from, with links to the names."""
    names: dict[str, list[str]] = {}
    for line in ast.parse((ROOT / "src" / "atent" / "__init__.pyi").read_text(encoding="utf-8")).body:
        if isinstance(line, ast.ImportFrom) and line.module:
            names.setdefault(line.module, []).extend(name.name for name in line.names)
    links = {module: ", ".join(f"[`{name}`][{module}.{name}]" for name in found) for module, found in names.items()}
    return "\n".join(f"- `{module}`: {found}" for module, found in links.items())


def rewritten(markdown: str, source: str, page: str) -> str:
    """The text of the repository's file `source` with links that fit the site's page `page`."""

    def fit(link: re.Match[str]) -> str:
        picture, text, target, anchor = link.groups(default="")
        path = PurePosixPath(normpath(PurePosixPath(source).parent / target))
        if path.is_relative_to("docs"):
            found = str(path.relative_to("docs"))
        elif str(path) in PAGES:
            found = PAGES[str(path)]
        else:
            return link[0] if picture else text  # a missing picture must fail the build
        return f"{picture}[{text}]({relpath(found, PurePosixPath(page).parent)}{anchor})"

    parts = re.split(r"(^```.*?^```)", markdown, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else LINK.sub(fit, part) for part in parts)
