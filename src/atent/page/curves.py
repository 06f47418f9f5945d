"""The figures of a page."""

from collections.abc import Mapping, Sequence
from typing import Any

from atent.page.parts import Drawing
from atent.page.svg import DASHES, HIGH, INK, MARKERS, QUIET, SERIES, WIDE, Canvas, canvas
from atent.report.paired import Paired
from atent.storage.brackets import Bracket
from atent.storage.certificates import Certified, curve
from atent.storage.rows import Rate

MOST = len(SERIES)  # lines that can be told apart
SHORT = 34  # characters of a name in a figure
BESIDE = 52  # characters of two names next to each other in a legend
KEPT = 400  # points of a line
Line = Sequence[tuple[float, Rate]]


def shortened(name: str) -> str:
    return name if len(name) <= SHORT else f"{name[: SHORT - 1]}\u2026"


def _thinned(values: Sequence[Any]) -> list[Any]:
    every = max(1, -(-len(values) // KEPT))
    return list(values[::every])


def _percent(axes: Any, top: float = 102) -> None:
    axes.set_ylim(0, top)
    axes.grid(axis="y", lw=0.7)
    axes.set_ylabel("accuracy (%)")
    axes.tick_params(length=3, color=QUIET)


def _legend(made: Canvas, axes: Any, count: int) -> None:
    """Above the axes, in two columns; in one if names are so long that the second column would be cut."""
    if count > 1:
        handles, names = axes.get_legend_handles_labels()
        half = -(-len(names) // 2)
        beside = max(map(len, names[:half])) + max(map(len, names[half:]), default=0)
        made.figure.legend(handles, names, loc="outside upper left", ncols=2 if beside <= BESIDE else 1)


def _style(k: int) -> dict[str, Any]:
    return {"color": SERIES[k], "ls": DASHES[k], "marker": MARKERS[k]}


def training_curves(key: str, history: Sequence[Mapping[str, Any]]) -> Drawing | None:
    """The accuracies on held-out images and at the trained points, and below them the loss."""
    shown = _thinned(history)
    lines = (
        ("clean", "held-out, clean"),
        ("robust", "held-out, attacked"),
        ("train_robust", "training, at the trained points"),
        ("train_clean", "training, clean"),
    )
    known = [(field, words) for field, words in lines if any(field in row for row in shown)]
    if not shown or not known:
        return None
    epochs = [row["epoch"] for row in shown]
    with canvas(key, 2, 1, (WIDE, HIGH + 0.7), sharex=True, height_ratios=(3, 1)) as made:
        (above,), (below,) = made.axes
        for k, (field, words) in enumerate(known):
            values = [100 * row[field] if field in row else float("nan") for row in shown]
            marks = {"marker": MARKERS[k]} if len(shown) <= 40 else {}
            above.plot(epochs, values, color=SERIES[k], ls=DASHES[k], label=words, **marks)
            there = [(e, v) for e, v in zip(epochs, values, strict=True) if v == v]
            tips = [f"epoch {e}, {words}: {v:.2f} %" for e, v in there]
            made.tip(above, [e for e, _ in there], [v for _, v in there], tips)
        best = next((row["epoch"] for row in reversed(history) if row.get("best")), None)
        if best is not None:
            above.axvline(best, color=QUIET, lw=1, ls=":", label=f"best epoch, {best}")
        _percent(above)
        _legend(made, above, 4)
        below.plot(epochs, [row.get("loss", float("nan")) for row in shown], color=INK, lw=1.2)
        below.set(xlabel="epoch", ylabel="loss")
        below.grid(axis="y", lw=0.7)
        below.tick_params(length=3, color=QUIET)
        below.xaxis.get_major_locator().set_params(integer=True)
        if len(shown) == 1:
            below.set_xticks(epochs)
    last = history[-1]
    facts = ", ".join(f"{words} {100 * last[field]:.2f} %" for field, words in known if field in last)
    words = f"Accuracy and loss during the training. After epoch {last['epoch']}: {facts}."
    return Drawing(made.svg, "Accuracy and loss during the training.", words)


def compared_trainings(key: str, runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Drawing | None:
    """The accuracy on attacked held-out images of several trainings."""
    known = {name: [row for row in history if "robust" in row] for name, history in runs.items()}
    known = {name: history for name, history in known.items() if history}
    if len(known) < 2:
        return None
    with canvas(key) as made:
        axes = made.axes[0, 0]
        for k, (name, history) in enumerate(list(known.items())[:MOST]):
            shown = _thinned(history)
            epochs, values = [row["epoch"] for row in shown], [100 * row["robust"] for row in shown]
            marks = {"marker": MARKERS[k]} if len(shown) <= 40 else {}
            axes.plot(epochs, values, color=SERIES[k], ls=DASHES[k], label=shortened(name), **marks)
            made.tip(
                axes, epochs, values, [f"{name}, epoch {e}: {v:.2f} %" for e, v in zip(epochs, values, strict=True)]
            )
        axes.set_xlabel("epoch")
        axes.xaxis.get_major_locator().set_params(integer=True)
        _percent(axes)
        _legend(made, axes, min(len(known), MOST))
    last = ", ".join(f"{name} {100 * history[-1]['robust']:.2f} %" for name, history in list(known.items())[:MOST])
    caption = f"Accuracy on attacked held-out images during the training{_first(len(known))}."
    return Drawing(made.svg, caption, f"{caption} At the end: {last}.")


def against_eps(key: str, norm: str, lines: Mapping[str, Line]) -> Drawing:
    """Accuracy against the radius of the threat, a line for each attack or network, with intervals."""
    with canvas(key) as made:
        axes = made.axes[0, 0]
        for k, (name, line) in enumerate(list(lines.items())[:MOST]):
            _with_intervals(made, axes, k, name, line, "eps")
        axes.set_xlabel(f"eps ({norm})")
        axes.set_xlim(left=0)
        _percent(axes)
        _legend(made, axes, min(len(lines), MOST))
    caption = f"Accuracy against the radius eps of the {norm} threat, with 95 % intervals{_first(len(lines))}."
    return Drawing(made.svg, caption, f"{caption} {_in_words(lines)}")


def certified_curve(key: str, found: Mapping[str, Certified]) -> Drawing:
    """Certified accuracy against radius."""
    lines = {name: [(radius, one.accuracy(radius)) for radius, _ in one.radii] for name, one in found.items()}
    with canvas(key) as made:
        axes = made.axes[0, 0]
        for k, (name, one) in enumerate(list(found.items())[:MOST]):
            if one.exact:
                points = _thinned(curve(one))
                axes.plot([r for r, _ in points], [100 * a for _, a in points], color=SERIES[k], ls=DASHES[k], lw=1)
            _with_intervals(made, axes, k, name, lines[name], "radius", "none" if one.exact else None)
        axes.set_xlabel("l2 radius")
        axes.set_xlim(left=0)
        _percent(axes)
        _legend(made, axes, min(len(found), MOST))
    caption = f"Certified accuracy against the l2 radius, with 95 % intervals{_first(len(found))}."
    return Drawing(made.svg, caption, f"{caption} {_in_words(lines)}")


def two_sided(key: str, one: Bracket) -> Drawing:
    """The robust accuracy lies in the band between certified and unbroken."""
    shares = [one.shares(radius) for radius in one.radii]
    low, high = [share.certified for share in shares], [share.unbroken for share in shares]
    with canvas(key) as made:
        axes = made.axes[0, 0]
        axes.fill_between(
            one.radii, [100 * r.value for r in low], [100 * r.value for r in high], color=SERIES[0], alpha=0.18, lw=0
        )
        for k, (name, rates) in enumerate((("certified: at least", low), ("not broken: at most", high))):
            _with_intervals(made, axes, k, name, list(zip(one.radii, rates, strict=True)), "radius")
        axes.set_xlabel("l2 radius")
        axes.set_xlim(left=0)
        _percent(axes)
        _legend(made, axes, 2)
    ends = (
        f"at {r:.4g}: {100 * a.value:.1f} to {100 * b.value:.1f} %"
        for r, a, b in zip(one.radii, low, high, strict=True)
    )
    caption = "The robust accuracy lies in the band: images in it are neither certified nor broken."
    return Drawing(made.svg, caption, f"{caption} {'; '.join(ends)}.")


def by_rows(key: str, rows: Sequence[tuple[str, Rate, Rate]], caption: str) -> Drawing:
    """Clean and robust accuracy of each row, a class or a network, with intervals."""
    with canvas(key, size=(WIDE, 0.9 + 0.24 * max(len(rows), 3))) as made:
        axes = made.axes[0, 0]
        for k, (place, words) in enumerate(((1, "clean"), (2, "under attack"))):
            for number, row in enumerate(rows):
                rate: Rate = row[place]  # type: ignore[assignment]
                y = number + (0.14 if k else -0.14)
                axes.plot([100 * rate.low, 100 * rate.high], [y, y], color=SERIES[k], lw=1.2)
                axes.plot(100 * rate.value, y, MARKERS[k], color=SERIES[k], ls="none", label=None if number else words)
                made.tip(axes, [100 * rate.value], [y], [f"{row[0]}, {words}: {rate} %"])
        axes.set_yticks(range(len(rows)), [shortened(row[0]) for row in rows])
        axes.set(xlim=(-1, 101), ylim=(len(rows) - 0.5, -0.5), xlabel="accuracy (%)")
        axes.grid(axis="x", lw=0.7)
        axes.tick_params(length=0)
        _legend(made, axes, 2)
    lowest = min(rows, key=lambda row: row[2].value)
    words = f"{caption} The lowest under attack is {lowest[0]}, {lowest[2]} %. The table has all values."
    return Drawing(made.svg, caption, words)


def paired_differences(key: str, rows: Sequence[tuple[str, Paired]], reference: str, measure: str) -> Drawing:
    """The paired difference of each network from the reference, with its interval."""
    with canvas(key, size=(WIDE, 0.8 + 0.24 * max(len(rows), 3))) as made:
        axes = made.axes[0, 0]
        axes.axvline(0, color=QUIET, lw=1)
        for number, (name, counts) in enumerate(rows):
            value, low, high = (100 * end for end in counts.difference)
            axes.plot([low, high], [number, number], color=SERIES[0], lw=1.4)
            axes.plot(value, number, "o", color=SERIES[0])
            made.tip(
                axes, [value], [number], [f"{name}: {value:+.2f} [{low:+.2f}, {high:+.2f}] points, p {counts.p:.2g}"]
            )
        axes.set_yticks(range(len(rows)), [shortened(name) for name, _ in rows])
        axes.set(ylim=(len(rows) - 0.5, -0.5), xlabel="difference (points)")
        axes.grid(axis="x", lw=0.7)
        axes.tick_params(length=0)
    caption = f"{measure}: difference from {reference}, with paired 95 % intervals."
    return Drawing(made.svg, caption, f"{caption} The table has all values.")


def _with_intervals(
    made: Canvas, axes: Any, k: int, name: str, line: Line, unit: str, connect: str | None = None
) -> None:
    xs, ys = [x for x, _ in line], [100 * rate.value for _, rate in line]
    axes.plot(xs, ys, **_style(k) | ({"ls": connect} if connect else {}), label=shortened(name))
    for x, rate in line:
        axes.plot([x, x], [100 * rate.low, 100 * rate.high], color=SERIES[k], lw=1)
    made.tip(axes, xs, ys, [f"{name}, {unit} {x:.4g}: {rate} %" for x, rate in line])


def _in_words(lines: Mapping[str, Line]) -> str:
    found = []
    for name, line in list(lines.items())[:MOST]:
        (start, first), (end, last) = line[0], line[-1]
        found.append(f"{name}: {100 * first.value:.1f} % at {start:.4g}, {100 * last.value:.1f} % at {end:.4g}")
    return "; ".join(found) + "."


def _first(count: int) -> str:
    return f", of the first {MOST} of {count}" if count > MOST else ""
