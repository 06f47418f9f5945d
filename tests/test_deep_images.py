"""Images with 16 bits: refused without the value of white, scaled to [0, 1] with it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from atent.data.dataset import open_data
from atent.data.images import Images
from atent.errors import UserError
from atent.evaluation.target import open_target
from atent.storage.run import Run
from atent.training.fit import fit
from short_runs import QUIET, tiny

WHITE, SIDE, PER_CLASS = 4095, 9, 6


def values(label: int, number: int) -> np.ndarray:
    """The pixels of an image: twelve bits, as many cameras have them."""
    return np.random.default_rng(10 * label + number).integers(0, WHITE + 1, (SIDE, SIDE)).astype(np.uint16)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    for label in (0, 1):
        (tmp_path / "deep" / f"class{label}").mkdir(parents=True)
        for number in range(PER_CLASS):
            Image.fromarray(values(label, number)).save(tmp_path / "deep" / f"class{label}" / f"{number}.png")
    return str(tmp_path / "deep")


@pytest.fixture
def file(tmp_path: Path) -> str:
    x = np.stack([values(label, number) for label in (0, 1) for number in range(PER_CLASS)])
    np.savez(tmp_path / "deep.npz", x=x, y=np.repeat([0, 1], PER_CLASS))
    return str(tmp_path / "deep.npz")


def pixels(images: Images) -> set[bytes]:
    x, _ = images.batch(slice(None))
    return {image.contiguous().numpy().tobytes() for image in x[:, 0]}


@pytest.mark.parametrize("form", ["folder", "file"])
def test_white_becomes_one_and_no_bit_is_lost(form: str, request: pytest.FixtureRequest) -> None:
    found = open_data(request.getfixturevalue(form), white=WHITE)
    parts = [found.images("train"), found.images("test")]
    expected = {
        (values(label, number).astype(np.float32) / np.float32(WHITE)).tobytes()
        for label in (0, 1)
        for number in range(PER_CLASS)
    }
    assert pixels(parts[0]) | pixels(parts[1]) == expected
    assert parts[0].in_memory().nbytes == parts[0].nbytes == len(parts[0]) * SIDE * SIDE * 4


def test_scaling_to_another_size_keeps_the_range(folder: str) -> None:
    x, _ = open_data(folder, white=WHITE, resize=4).images("train").batch(slice(None))
    assert x.shape[1:] == (1, 4, 4)
    assert 0 <= x.min() < 0.4 < 0.6 < x.max() <= 1


@pytest.mark.parametrize(
    ("form", "white", "words"),
    [
        ("folder", None, r"\.png: it has 16-bit pixels; white = 65535"),
        ("file", None, "x is uint16; allowed: uint8, or floats from 0 to 1; white = 65535"),
        ("folder", 100, r"\.png: its pixels go from \d+ to \d+; allowed with white = 100: 0 to 100"),
        ("file", 100, r"x: its pixels go from \d+ to \d+; allowed with white = 100: 0 to 100"),
    ],
)
def test_without_the_right_white_they_are_refused(
    form: str, white: int | None, words: str, request: pytest.FixtureRequest
) -> None:
    with pytest.raises(UserError, match=words) as told:
        open_data(request.getfixturevalue(form), white=white).images("train").batch(slice(None))
    assert "\n" not in str(told.value)


def test_white_is_for_own_deep_images_alone(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="white = 255 with data mnist-small"):
        open_data("mnist-small", white=255)
    for label in ("a", "b"):
        (tmp_path / label).mkdir()
        for number in range(2):
            Image.new("L", (4, 4)).save(tmp_path / label / f"{number}.png")
    with pytest.raises(UserError, match="its pixels have mode L; allowed with white = 255: 16-bit grey"):
        open_data(str(tmp_path), white=255)


def test_a_run_remembers_white(folder: str, tmp_path: Path) -> None:
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(SIDE * SIDE, 2))
    recipe = tiny(data=folder, validation=0, epochs=1, batch=4, defense__name="standard", white=WHITE)
    run = fit(recipe, tmp_path / "run", model=network, how=QUIET)
    assert json.loads(Run(run.folder).data_file.read_text())["white"] == WHITE
    x, _ = open_target(run.folder, model=network).images.batch(slice(None))
    assert pixels(open_data(folder, white=WHITE).images("test")) == {image.numpy().tobytes() for image in x[:, 0]}
