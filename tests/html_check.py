"""Read a page with the standard library and check what every page must hold."""

from collections import Counter
from html.parser import HTMLParser
from itertools import pairwise

VOID = {"meta", "link", "img", "br", "input", "hr"}


class Reader(HTMLParser):
    """Tags, attributes and texts of a page; `faults` are tags that do not close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: list[tuple[str, str]] = []  # the innermost tag and its text
        self.open: list[str] = []
        self.faults: list[str] = []
        self.feed(text)
        self.close()
        self.faults += [f"{tag} is not closed" for tag in self.open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {key: value or "" for key, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "code":
            self.texts.append((tag, ""))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {key: value or "" for key, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> at {self.getpos()}")

    def handle_data(self, data: str) -> None:
        if "code" in self.open:  # one text, whatever tags are inside
            self.texts[-1] = ("code", self.texts[-1][1] + data)
        elif self.open and data.strip():
            self.texts.append((self.open[-1], data.strip()))

    def all(self, *names: str) -> list[dict[str, str]]:
        return [attributes for tag, attributes in self.tags if tag in names]

    def text_of(self, tag: str) -> list[str]:
        return [text for inside, text in self.texts if inside == tag]


def check_page(text: str) -> Reader:
    """Balanced, self-contained, readable by a screen reader, under 3 MB."""
    page = Reader(text)
    assert page.faults == []
    assert len(text.encode()) < 3_000_000
    addresses = [one[key] for _, one in page.tags for key in ("src", "href", "xlink:href") if key in one]
    assert all(address.startswith(("#", "data:")) for address in addresses)
    ids = Counter(one["id"] for _, one in page.tags if "id" in one)
    assert set(ids.values()) <= {1}
    assert {address[1:] for address in addresses if address.startswith("#")} <= ids.keys()
    headings = [int(tag[1]) for tag, _ in page.tags if tag in ("h1", "h2", "h3", "h4")]
    assert headings[0] == 1
    assert headings.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(headings))
    assert len(page.all("caption")) == len(page.all("table"))
    assert all(one.get("scope") in ("col", "row") for one in page.all("th"))
    assert all(one.get("alt") for one in page.all("img"))
    drawings = [one for one in page.all("div") if one.get("class") == "drawing"]
    assert len(drawings) == len(page.all("svg")) == len(page.all("figcaption"))
    assert all(one["role"] == "img" and one["aria-label"] for one in drawings)
    assert page.all("html")[0]["lang"] == "en"
    assert {"main", "nav", "header", "footer"} <= {tag for tag, _ in page.tags}
    return page
