"""A run as a folder that other programs and the Hugging Face Hub read."""

import json
from pathlib import Path

import torch
from torch import Tensor, nn

from atent import __version__
from atent.data.dataset import load as load_images
from atent.data.published import SOURCES
from atent.errors import UserError
from atent.evaluation.trained import check_trusted, find_weights, load_network, run_of, shape_of
from atent.export.card import Described, results_of, without_places
from atent.export.formats import IMAGES, write_onnx, write_program
from atent.export.robustbench import missing, model_info
from atent.methods import readable
from atent.models.standardize import Standardized
from atent.network import Shape
from atent.randomness import derive
from atent.storage.files import save_tensors, write_atomically, write_json
from atent.storage.run import Run
from atent.zoo.index import as_record, entry_of, is_zoo, name_of


@readable
def export_run(
    run: str | Path,
    to: str | Path,
    *,
    name: str | None = None,
    licence: str | None = None,
    onnx: bool = False,
    program: bool = False,
    robustbench: bool = False,
    model: str | nn.Module | None = None,
    data_dir: Path | None = None,
    trust: bool = False,
) -> list[str]:
    """Write a run's network to the folder `to`; returns what is written and what it lacks, a line each.

    Always: `model.safetensors`, `config.json` and `README.md`, the card. `onnx` adds `model.onnx`, `program` adds
    `model.pt2` of torch.export, `robustbench` adds `robustbench.json`. The same call updates the folder.

    Args:
        run: A run folder, or a checkpoint of ours; the card has the results of its folder. Or `zoo:NAME`.
        to: The folder to write to. Other files in it are left alone.
        name: The name on the card. Default: that of the run folder, or NAME.
        licence: The identifier of a licence for the card, such as `mit`.
        onnx: Whether to write ONNX; needs the extra `export`.
        program: Whether to write what torch.export makes.
        robustbench: Whether to write the model-info JSON of RobustBench.
        model: The network if it was trained as an object, or its `package.module:function`.
        data_dir: The folder of the data set; its test images check the other formats. Without them: random images.
        trust: Whether to import and run a `package.module:function` that only the run names.
    """
    path, folder = Path(run), Path(to)
    weights, recipe = find_weights(path)
    if recipe is None:
        raise UserError(f"{path} is no run or checkpoint of atent; atent export needs its recipe")
    if not model:
        check_trusted(recipe.model, path, trust, f"name it yourself with --model {recipe.model!r}")
    source = run_of(path, weights)
    shape = shape_of(recipe, source, data_dir)
    network, digest = load_network(model or recipe.model, recipe, weights, shape, "cpu")
    classes = _classes(recipe.data, source, shape)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    called = name or (name_of(path) if is_zoo(path) else source.folder.resolve().name)
    shared = without_places(recipe)
    published = map(as_record, entry_of(path).results) if is_zoo(path) else None
    found = results_of(source.folder, digest) if published is None else list(published)
    about = Described(called, shared, digest, shape.image, classes, parameters, found, licence)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make {folder}: {error.strerror}") from None
    settings = shared.model_dump(mode="json")
    save_tensors(folder / "model.safetensors", network.state_dict(), {"recipe": settings})
    config = {
        "library_name": "atent",
        "atent_version": __version__,
        "architecture": recipe.model,
        "image": list(shape.image),
        "pixels": [0.0, 1.0],
        "standardized_inside": isinstance(network, Standardized),
        "id2label": {str(k): label for k, label in enumerate(classes)},
        "threat": recipe.threat,
        "smooth": recipe.smooth,
        "weights_sha256": digest,
        "recipe": settings,
    }
    write_json(folder / "config.json", config)
    if recipe.data not in SOURCES:
        write_json(folder / "data.json", {"image": list(shape.image), "classes": list(classes)})
    write_atomically(folder / "README.md", about.card().encode())
    lines = [f"{folder}: model.safetensors, config.json, README.md (results of these weights: {len(about.found)})"]
    if onnx or program:
        x, which = _hundred(recipe.data, data_dir, shape)
        for wanted, write, file in ((onnx, write_onnx, "model.onnx"), (program, write_program, "model.pt2")):
            if wanted:
                write(network, x, folder / file)
                lines.append(f"{folder / file}: the same answers on {len(x)} {which}")
    if robustbench:
        info = model_info(shared, about.found)
        write_atomically(folder / "robustbench.json", (json.dumps(info, indent=2) + "\n").encode())
        lines += [f"{folder / 'robustbench.json'}: {line}" for line in missing(shared, about.found)]
    return lines


def _classes(data: str, run: Run, shape: Shape) -> tuple[str, ...]:
    if data in SOURCES:
        return SOURCES[data].classes
    record = run.data_record() or {}
    return tuple(record.get("classes") or record.get("train") or map(str, range(shape.classes)))


def _hundred(data: str, data_dir: Path | None, shape: Shape) -> tuple[Tensor, str]:
    """A hundred test images, or random ones where the test images are not there."""
    try:
        images = load_images(data, "test", data_dir).take(slice(IMAGES))
    except UserError:
        return torch.rand(IMAGES, *shape.image, generator=derive(0, "export")), "random images"
    return images.batch(slice(None))[0], "test images"
