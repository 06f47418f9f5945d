"""`atent plan`."""

from typing import TYPE_CHECKING, Annotated

import typer

from atent.cli.options import DataDir, DataName, Device, ModelName, Settings, Suite, Threads

if TYPE_CHECKING:
    from atent.planning.plan import Job, Needs, Place
    from atent.recipe import Recipe


def plan(
    recipe: Annotated[str, typer.Argument(help="A recipe's name (atent list recipes) or the path of a .toml file.")],
    data: DataName = None,
    data_dir: DataDir = None,
    model: ModelName = None,
    settings: Settings = None,
    images: Annotated[int | None, typer.Option(help="Images that are not here: how many.", min=2)] = None,
    shape: Annotated[str | None, typer.Option(help="Their shape, such as 3x224x224.")] = None,
    classes: Annotated[int | None, typer.Option(help="Their number of classes.", min=2)] = None,
    on: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Accelerator: t4, v100, a100, h100, l4, rtx4090 or all. Repeatable."),
    ] = None,
    devices: Annotated[int, typer.Option(help="Accelerators that share each batch; communication is not counted.")] = 1,
    efficiency: Annotated[
        float | None,
        typer.Option(
            help="Share of an accelerator's published peak that is reached. Default: 0.3.", show_default=False
        ),
    ] = None,
    price: Annotated[float | None, typer.Option(help="Price of a device per hour, for the cost.")] = None,
    suite: Suite = None,
    within: Annotated[
        float | None, typer.Option(metavar="POINTS", help="With --suite: the accuracy to +- POINTS by a sample.")
    ] = None,
    certify: Annotated[
        float | None, typer.Option(metavar="SIGMA", help="Also a certification with noise of this deviation.")
    ] = None,
    n: Annotated[int, typer.Option("--n", help="With --certify: draws per image, at most.")] = 100_000,
    no_probe: Annotated[
        bool, typer.Option("--no-probe", help="Measure nothing on this machine; count and look up only.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Estimate what a training will take, before it runs: passes, operations, memory, time, energy and cost.

    A probe trains some batches, for about half a minute, and writes nothing. A published data set need not be here.
    For example: `atent plan cifar10-linf-atent-paper --on a100 --devices 4 --price 2.5 --suite strong --within 1`
    """
    from atent.errors import UserError
    from atent.machine import pick_device, prepare
    from atent.methods import parse_setting
    from atent.planning.accelerators import ACCELERATORS, EFFICIENCY, check_efficiency, find_accelerator
    from atent.planning.plan import (
        certification_job,
        check_asked,
        evaluation_jobs,
        here,
        needs_of,
        probe_request,
    )
    from atent.planning.plan import on as place_on
    from atent.planning.probe import run_probe
    from atent.planning.sizes import find_sizes
    from atent.recipe import load_recipe

    check_asked(devices, price, n)
    share = EFFICIENCY if efficiency is None else efficiency
    check_efficiency(share)
    names = list(ACCELERATORS) if on == ["all"] else on or []
    accelerators = [find_accelerator(name) for name in names]
    if within is not None and suite is None:
        raise UserError(f"--within {within:g} without --suite; it is the precision of a suite's estimate")
    named = {"data": data, "model": model}
    changes = dict(map(parse_setting, settings or [])) | {key: value for key, value in named.items() if value}
    chosen = load_recipe(recipe, changes)
    prepare(threads)
    sizes = find_sizes(chosen, data_dir, images, shape, classes)
    needs = needs_of(chosen, sizes)
    jobs = evaluation_jobs(needs, chosen, suite, within) if suite else []
    jobs += [certification_job(needs, certify, n)] if certify is not None else []
    places = []
    if not no_probe:
        probe = run_probe(probe_request(needs, chosen, data_dir, str(pick_device(device)), threads))
        places.append(here(needs, chosen, probe, jobs).priced(price, 1))
    found = [place for one in accelerators for place in place_on(needs, chosen, one, devices, share, jobs)]
    places += [place.priced(price, devices) for place in found]
    if json:
        _print_json(chosen, needs, jobs, places)
        return
    _print_needs(recipe, chosen, needs, jobs)
    if places:
        _print_places(chosen, places, jobs, devices if accelerators else 1)
    if accelerators:
        _print_sources(names, share, devices)


def _print_needs(name: str, recipe: "Recipe", needs: "Needs", jobs: "list[Job]") -> None:
    from atent.report.terminal import print_table

    step, held = needs.step, needs.evaluation
    whole = recipe.minutes is None
    epochs = f"{needs.epochs} epochs" if whole else f"{recipe.minutes:g} minutes"
    repeated, period = (needs.epochs, "in total") if whole else (1, "in an epoch")
    operations = repeated * (needs.epoch + held.operations)
    images = needs.sizes.trained(recipe)
    rows = [
        ["parameters", f"{needs.parameters:,}"],
        ["training images", f"{images:,} in {needs.batches:,} batches of {recipe.batch}, {epochs}"],
        [
            "passes per image",
            f"{step.forward} forward, {step.backward} backward ({step.to_weights} of them to the weights)",
        ],
        [f"passes {period}", f"{repeated * images * step.forward:,} images forward"],
        ["operations", f"{_si(needs.operations.forward)}FLOP per forward pass, {_si(operations)}FLOP {period}"],
        ["memory", f"{_si(needs.memory(recipe.batch))}B for weights, optimizer and activations of a batch"],
    ]
    if held.images:
        rows.append(["evaluation", f"{held.images:,} held-out images after each epoch, {_counts(held)}"])
    rows += [[job.name, f"{job.images:,} images, {_counts(job)}; {job.note}"] for job in jobs]
    title = f"{name}: {recipe.model} on {recipe.data}, {recipe.defense['name']} at {recipe.threat}"
    print_table(title, ["", "needed"], rows)


def _print_places(recipe: "Recipe", places: "list[Place]", jobs: "list[Job]", devices: int) -> None:
    from atent.report.terminal import print_table
    from atent.reproduce.costs import words

    columns = ["where", "an epoch", "epochs", "training", "memory", "energy", "price"]
    rows = [
        [
            place.name,
            words(place.epoch),
            f"{place.epochs:.3g}" if recipe.minutes else "",
            words(place.total),
            f"{_si(place.memory)}B{'' if place.fits else ', too much'}",
            "" if place.watt_hours is None else f"{_si(place.watt_hours)}Wh",
            "" if place.price is None else f"{place.price:,.2f}",
        ]
        for place in places
    ]
    kept = [k for k, _ in enumerate(columns) if any(row[k] for row in rows)]
    several = f" on {devices} of each accelerator; memory is per device" if devices > 1 else ""
    print_table(f"training{several}", [columns[k] for k in kept], [[row[k] for k in kept] for row in rows])
    if jobs:
        after = [[place.name, *map(words, place.jobs)] for place in places]
        print_table("afterwards; the price includes it", ["where", *(job.name for job in jobs)], after)


def _print_sources(names: list[str], share: float, devices: int) -> None:
    from atent.planning.accelerators import ACCELERATORS
    from atent.report.terminal import tell

    tell(f"Accelerators: {100 * share:g} % of the published dense peak is assumed, not measured; energy is their TDP.")
    if devices > 1:
        tell("Devices: each takes its part of a batch; communication is not counted.")
    for name in names:
        one = ACCELERATORS[name]
        peaks = f"{one.single / 1e12:g} TFLOP/s in float32, {one.half / 1e12:g} in half precision"
        tell(f"{one.title}: {peaks}, {one.watts} W, {one.gigabytes} GB ({one.source})")


def _print_json(recipe: "Recipe", needs: "Needs", jobs: "list[Job]", places: "list[Place]") -> None:
    import json
    from dataclasses import asdict

    lists = {
        "jobs": [asdict(job) for job in jobs],
        "places": [{**asdict(place), "epochs": place.epochs} for place in places],
    }
    found = {**asdict(needs), "total": needs.total, **lists}
    if recipe.minutes:  # the number of epochs depends on the place
        found |= {"epochs": None, "total": None}
    print(json.dumps(found, indent=2))


def _counts(job: "Job") -> str:
    backward = f" and {job.passes.backward:,} backward" if job.passes.backward else ""
    return f"{job.passes.forward:,} forward{backward} passes each"


def _si(number: float) -> str:
    """Three digits and the prefix of a unit: `1.23 G`."""
    for size, prefix in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * size:
            return f"{number / size:.3g} {prefix}"
    return f"{number:.3g} "
