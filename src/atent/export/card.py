"""The model card of a network, made from its rows."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atent.data.given import GIVEN
from atent.data.published import SOURCES
from atent.evaluation.estimate import estimates
from atent.models.ensemble import members_of
from atent.recipe import Recipe
from atent.report.records import Record, records
from atent.report.tables import finished
from atent.storage.brackets import brackets
from atent.storage.certificates import certified
from atent.storage.rows import Rate

GRADIENT_FREE = ("square", "strong", "autoattack")  # methods that contain an attack without gradients


@dataclass(frozen=True)
class Described:
    """A network as its card describes it."""

    name: str
    recipe: Recipe
    weights: str
    image: tuple[int, int, int]
    classes: Sequence[str]
    parameters: int
    found: Sequence[Record]
    licence: str | None = None
    opened: str = "model.safetensors"  # how a user names the network

    def card(self) -> str:
        """Markdown after a YAML header, as the Hugging Face Hub reads it."""
        parts = [self._header(), f"# {self.name}", self._what(), "## Use", self._use(), "## Accuracy", self._accuracy()]
        parts += ["## Limits", "\n".join(f"- {limit}" for limit in self._limits())]
        parts += ["## Training", self._training()]
        if self.licence:
            parts += [
                "## Licence",
                f"Of the weights: {self.licence}. It does not cover the images of {self.recipe.data}.",
            ]
        return "\n\n".join(parts) + "\n"

    def _header(self) -> str:
        lines = {
            "library_name": "atent",
            "pipeline_tag": "image-classification",
            "tags": ["image-classification", "adversarial-robustness", "safetensors"],
            **({"datasets": [self.recipe.data]} if self.recipe.data in SOURCES else {}),
            **({"license": self.licence} if self.licence else {}),
            "model-index": [{"name": self.name, "results": [*map(self._metric, self.found)]}],
        }
        # JSON is YAML, and quotes every name.
        return "\n".join(["---", *(f"{key}: {json.dumps(value)}" for key, value in lines.items()), "---"])

    def _metric(self, record: Record) -> dict[str, Any]:
        kind, data = "Certified" if record["kind"] == "certificate" else "Robust", data_name(record["data"])
        what = f"{kind} accuracy, {_method(record)}, {record['threat']}, {record['images']:,} images"
        return {
            "task": {"type": "image-classification"},
            "dataset": {"name": data, "type": data, "split": "test"},
            "metrics": [{"type": "accuracy", "name": what, "value": round(100 * record["robust"], 2)}],
        }

    def _what(self) -> str:
        channels, height, width = self.image
        pixels = f"{height} x {width} pixels, {channels} channel{'s' * (channels > 1)}"
        smoothed = f", smoothed with noise of deviation {self.recipe.smooth:g}" if self.recipe.smooth else ""
        several = members_of(self.recipe.model)
        kind = f"An ensemble of {several[0]} networks, `{self.recipe.model}`," if several else f"`{self.recipe.model}`"
        network = f"{kind} with {self.parameters:,} parameters{smoothed}"
        return (
            f"{network}, for the {len(self.classes)} classes of {self.recipe.data} ({pixels}). Trained by atent with "
            f"the defense `{self.recipe.defense['name']}` against `{self.recipe.threat}`. It takes pixels in [0, 1] "
            f"and returns logits; standardization, if any, is its first layer.\n\n"
            f"sha256 of the weights: `{self.weights}`"
        )

    def _use(self) -> str:
        python = f'import atent\n\nnetwork = atent.load("{self.opened}")  # a torch.nn.Module in eval mode'
        command = f"atent attack {self.opened} --threat {self.recipe.threat} --suite strong"
        if self.recipe.smooth:
            command = f"atent certify {self.opened} --sigma {self.recipe.smooth:g} --examples 100"
        return f"```python\n{python}\n```\n\n```sh\n{command}\n```"

    def _accuracy(self) -> str:
        if not self.found:
            return "Not evaluated yet: there are no rows of these weights."
        lines = ["| | threat | images | clean % | accuracy % [95 %] |", "|---|---|---:|---:|---:|"]
        return "\n".join([*lines, *map(_line, self.found)])

    def _limits(self) -> Iterable[str]:
        yield f"The accuracies hold for {self.recipe.data} and the threats listed, and for no other change of an image."
        if self.recipe.smooth:
            yield f"Certificates hold for the smoothed network: `atent.Smoothed(network, {self.recipe.smooth:g})`."
        if not any(record["kind"] == "certificate" for record in self.found):
            yield "No accuracy is certified: a stronger attack may find more."
        methods = " ".join(str(record["method"]).lower() for record in self.found)
        if not any(name in methods for name in GRADIENT_FREE):
            yield "No attack without gradients was run: masked gradients would not be noticed."
        several = members_of(self.recipe.model)
        yield f"One ensemble of {several[0]} networks." if several else "One training with one seed."

    def _training(self) -> str:
        settings = json.dumps(self.recipe.model_dump(mode="json"), indent=2)
        return f"<details><summary>Every setting</summary>\n\n```json\n{settings}\n```\n\n</details>"


def results_of(run: Path, weights: str) -> list[Record]:
    """The results of a run folder that are of these weights. Brackets are left out: a side of them is a certificate."""
    every = records(finished(run), estimates(run), certified(run), brackets(run))
    return [one for one in every if one["weights"] == weights and one["kind"] != "bracket"]


def data_name(data: str) -> str:
    """Data without its place on this machine: a user's own is named as its folder or file, as no published data is."""
    if data in SOURCES or data.endswith(GIVEN):
        return data
    name = Path(data).resolve().name
    return f"own-{name}" if name in SOURCES else name


def without_places(recipe: Recipe) -> Recipe:
    """The recipe as others may read it: data and first weights by their names."""
    weights = recipe.weights and Path(recipe.weights).name
    return recipe.model_copy(update={"data": data_name(recipe.data), "weights": weights})


def _method(record: Record) -> str:
    """The method, and which variant of the network it attacked. A certificate's method has it already."""
    variant = record["variant"] if record["kind"] != "certificate" else None
    return ", ".join(filter(None, (record["method"], variant)))


def _line(record: Record) -> str:
    title = {"certificate": "certified, ", "estimate": "whole test set, "}.get(record["kind"], "") + _method(record)
    clean = "" if record["clean"] is None else f"{100 * record['clean']:.2f}"
    robust = Rate(record["robust"], record["low"], record["high"])
    return f"| {title} | {record['threat']} | {record['images']:,} | {clean} | {robust} |"
