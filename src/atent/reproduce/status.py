"""What is there of a table and what the rest will take."""

from collections.abc import Sequence
from typing import NamedTuple

from atent.reproduce.costs import GPU, measure_passes, seconds, training_passes, words
from atent.reproduce.engine import Place
from atent.reproduce.work import Job
from atent.storage.run import Run


class Left(NamedTuple):
    """What is missing of a network: epochs, measures, the passes that they take (millions) and the time."""

    network: str
    epochs: str
    measures: int
    passes: float
    seconds: float


def left_of(job: Job, place: Place) -> Left:
    recipe = place.recipe(job.network)
    done = recipe.epochs if job.trained else len(Run(place.home / job.network).history())
    on_gpu = place.budget == "full"
    training = training_passes(recipe, recipe.epochs - done)
    measures = sum(measure_passes(measure, recipe) for _, measure in job.missing)
    took = seconds(training, recipe, on_gpu, recipe.amp) + seconds(measures, recipe, on_gpu)
    passes = training + measures
    return Left(job.network, f"{done} of {recipe.epochs}", len(job.missing), passes / 1e6, took)


def total_words(found: Sequence[Left], place: Place, processes: int) -> str:
    """What all of it takes, in one line."""
    total, passes = sum(one.seconds for one in found), sum(one.passes for one in found)
    if not found:
        return "nothing is missing"
    if place.budget == "full":
        days = total / 86_400
        return f"{passes:,.0f} million passes, {days:.1f} GPU-days at {GPU / 1e12:g} TFLOP/s (stated, not measured)"
    longest = max(one.seconds for one in found)
    wall = words(max(total / processes, longest))
    return (
        f"{passes:,.2f} million passes, {words(total)} of one core at the rates measured now; "
        f"about {wall} with {processes} processes"
    )
