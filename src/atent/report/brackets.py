"""Tables of robust accuracies that are known from both sides."""

from collections.abc import Iterable, Sequence

from atent.report.tables import UNVERIFIED, mark, note
from atent.report.terminal import print_table, tell
from atent.storage.brackets import Bracket
from atent.storage.certificates import smoothing_of


def _cells(one: Bracket) -> Iterable[list[str]]:
    """For each radius: the radius, the shares of images, and the interval of the robust accuracy."""
    for radius in one.radii:
        found = one.shares(radius)
        shares = [f"{100 * share.value:.2f}" for share in (found.certified, found.open, found.broken)]
        between = f"{100 * found.certified.value:.2f} to {100 * found.unbroken.value:.2f}"
        yield [
            f"{radius:.4g}",
            *shares,
            f"{between} [{100 * found.certified.low:.1f}, {100 * found.unbroken.high:.1f}]",
        ]


def _verified(one: Bracket) -> bool:
    return one.verified and one.certified.verified


def overlap_words(one: Bracket) -> str:
    """How many images are certified and broken, next to the number expected."""
    expected = f"at most {one.expected_overlaps:.3g} expected (2 alpha per image)"
    return f"certified and broken at one radius: {one.overlaps} of {len(one.rows):,} images; {expected}"


def print_bracket(one: Bracket) -> None:
    """The robust accuracy at each radius, overlaps and cost."""
    how = one.header
    print_table(
        f"{one.certified.run}{mark(_verified(one))}: {len(one.rows):,} {how['data']} test images, {smoothing_of(how)}; "
        f"attacked by {how['label']}",
        ["l2 radius", "certified %", "open %", "broken %", "robust %, between [95 %]"],
        list(_cells(one)),
    )
    tell(f"{overlap_words(one)}.")
    tell(f"attack and tests: {one.cost}")
    tell(f"curve: {one.path.with_suffix('.png')}")
    if not _verified(one):
        tell(UNVERIFIED)


def bracket_markdown(found: Sequence[Bracket]) -> str:
    """Brackets as in the docs, one line per radius."""
    columns = (
        "| network | data | sigma | n | attack | images | l2 radius | certified % | open % | broken % | robust % |"
    )
    head = f"{columns}\n|---|---|---:|---:|---|---:|---:|---:|---:|---:|---:|"
    body = []
    for one in found:
        how, name = one.header, f"{one.certified.run}{mark(_verified(one))}"
        place = [name, how["data"], f"{how['sigma']:g}", f"{how['n']:,}", how["label"], f"{len(one.rows):,}"]
        body += [f"| {' | '.join([*place, *cells])} |" for cells in _cells(one)]
    words = [f"{one.certified.run}, {one.header['label']}: {overlap_words(one)}." for one in found]
    return "\n".join([head, *body, "", *words, *note(all(map(_verified, found)))])
