"""A small table as HTML, for notebooks."""

from collections.abc import Sequence
from html import escape


def html_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> str:
    """A table with a title and notes below it. Every text is escaped, so a name cannot contain markup."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    below = "".join(f"<p>{escape(note)}</p>" for note in notes)
    return f"<table><caption>{escape(title)}</caption><tr>{head}</tr>{body}</table>{below}"
