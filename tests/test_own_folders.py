import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from atent.data.dataset import load, open_data
from atent.data.decode import Files, decode, read_header
from atent.data.folder import recorded_folder, scan_folder
from atent.data.images import Images, Split, epoch_batches
from atent.errors import UserError
from atent.recipe import load_recipe
from atent.training.fit import fit
from short_runs import QUIET
from toys import generator

GREY = np.arange(8 * 6, dtype=np.uint8).reshape(8, 6)
SPLITS: tuple[Split, ...] = ("train", "test")
RED, WHITE = (200, 10, 20), (255, 255, 255)


def picture(path: Path, pixels: np.ndarray = GREY, mode: str | None = None, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(path, **options)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twenty images of each of three classes; every pixel of an image has its number."""
    for label, name in enumerate(("bag", "coat", "hat")):
        for k in range(20):
            picture(tmp_path / "own" / name / f"{k:02}.png", np.full((8, 6), 20 * label + k, np.uint8))
    return tmp_path / "own"


def numbers(images: Images) -> list[int]:
    """Which images these are."""
    return images.pixels()[:, 0, 0, 0].tolist()


def test_a_folder_is_split_by_names_and_labelled_by_its_folders(folder: Path) -> None:
    train, test = load(str(folder), "train"), load(str(folder), "test")
    assert train.classes == ("bag", "coat", "hat")
    assert sorted(numbers(train) + numbers(test)) == list(range(60))
    for images in (train, test):
        assert images.y.tolist() == [number // 20 for number in numbers(images)]
        assert set(images.y.tolist()) == {0, 1, 2}
        assert images.shape == ((1, 8, 6), 3)
    assert 4 <= len(test) <= 22


def test_the_first_images_are_a_sample_of_all_classes(folder: Path, tmp_path: Path) -> None:
    """Or --examples 100 and the images that judge an epoch would be of one class."""
    y = np.repeat(np.arange(3), 20)
    np.savez(tmp_path / "sorted.npz", x=np.zeros((60, 8, 6), np.uint8), y=y)
    for data in (folder, tmp_path / "sorted.npz"):
        for split in SPLITS:
            images = load(str(data), split)
            assert (images.y.diff() < 0).any()
        assert set(load(str(data), "train").y[:15].tolist()) == {0, 1, 2}


def test_new_images_never_make_a_test_image_of_a_trained_one(folder: Path) -> None:
    before = set(numbers(load(str(folder), "test")))
    for k in range(30):
        picture(folder / "bag" / f"new{k}.png", np.full((8, 6), 100 + k, np.uint8))
    after = set(numbers(load(str(folder), "test")))
    assert {number for number in after if number < 60} <= before
    assert any(number >= 100 for number in after)


def test_a_digest_tells_other_test_images_and_another_cut(folder: Path) -> None:
    before = open_data(str(folder)).digest
    assert open_data(str(folder)).digest == before
    assert open_data(str(folder), resize=4).digest != before
    (test, *_) = [name for names in open_data(str(folder)).record["test"].values() for name in names]
    (folder / test).write_bytes((folder / test).read_bytes() + b"more")
    assert open_data(str(folder)).digest != before
    assert open_data("mnist-small").digest == ""


def test_a_record_keeps_what_was_there(folder: Path) -> None:
    first = scan_folder(folder, None, 0.2)
    record = json.loads(json.dumps(first.record))
    picture(folder / "hat" / "later.png", np.full((8, 6), 99, np.uint8))
    assert recorded_folder(folder, record) == first


def test_train_and_test_folders_are_taken_as_they_are(folder: Path) -> None:
    root = folder.parent / "both"
    root.mkdir()
    folder.rename(root / "train")
    for name in ("bag", "coat", "hat"):
        picture(root / "test" / name / "one.png", np.full((8, 6), 77, np.uint8))
    assert len(load(str(root), "train")) == 60
    assert numbers(load(str(root), "test")) == [77, 77, 77]


@pytest.mark.parametrize(
    ("mode", "colour", "expected"),
    [
        ("L", False, None),
        ("1", False, None),
        ("LA", False, None),
        ("P", True, None),
        ("RGB", True, RED),
        ("RGBA", True, RED),
        ("CMYK", True, None),
    ],
)
def test_kinds_of_pixels(tmp_path: Path, mode: str, colour: bool, expected: tuple[int, ...] | None) -> None:
    """Each against Pillow's own conversion of what was saved."""
    pixels = np.tile(np.array(RED, np.uint8), (8, 6, 1))
    path = picture(tmp_path / ("a.jpg" if mode == "CMYK" else "a.png"), pixels, mode)
    assert read_header(path) == (colour, 8, 6)
    found = decode(path, (3 if colour else 1, 8, 6), crop=False)
    with Image.open(path) as image:
        reference = np.asarray(image.convert("RGB" if colour else "L")).reshape(8, 6, -1).transpose(2, 0, 1)
    assert np.array_equal(found, reference)
    if expected:
        assert found[:, 0, 0].tolist() == list(expected)


def test_what_is_transparent_lies_on_white(tmp_path: Path) -> None:
    pixels = np.zeros((8, 6, 4), np.uint8)
    pixels[:4] = (*RED, 255)
    pixels[4:] = (*RED, 0)
    found = decode(picture(tmp_path / "a.png", pixels), (3, 8, 6), crop=False)
    assert found[:, 0, 0].tolist() == list(RED)
    assert found[:, 7, 0].tolist() == list(WHITE)


def test_a_camera_held_sideways_is_believed(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    path = picture(tmp_path / "a.jpg", GREY, exif=exif, quality=100)
    assert read_header(path)[1:] == (6, 8)
    assert decode(path, (1, 6, 8), crop=False).shape == (1, 6, 8)


def test_one_colour_image_makes_the_set_rgb(folder: Path) -> None:
    picture(folder / "hat" / "red.png", np.tile(np.array(RED, np.uint8), (8, 6, 1)))
    assert load(str(folder), "train").shape.image == (3, 8, 6)


def test_resizing_crops_the_centre_and_scales(folder: Path) -> None:
    wide = np.zeros((10, 30), np.uint8)
    wide[:, 8:22] = 250
    picture(folder / "hat" / "wide.png", wide)
    with pytest.raises(UserError, match=r"different sizes: .*8 x 6.*wide\.png 10 x 30.*resize=N"):
        load(str(folder), "train")
    images = open_data(str(folder), resize=5)
    assert images.images("train").shape.image == (1, 5, 5)
    assert (decode(folder / "hat" / "wide.png", (1, 5, 5), crop=True) == 250).all()


@pytest.mark.parametrize("settings", [{}, {"validation": 0}], ids=["defaults", "validation 0"])
def test_eight_images_train_without_held_out_ones(tmp_path: Path, settings: dict[str, Any]) -> None:
    for name in ("bag", "coat"):
        for k in range(4):
            picture(tmp_path / "own" / name / f"{k}.png")
    short = {"data": str(tmp_path / "own"), "epochs": 1, "defense.steps": 1}
    run = fit(load_recipe("own-images", short | settings), tmp_path / "run", how=QUIET)
    (row,) = run.history()
    assert "clean" not in row
    assert run.best.exists()


def test_images_on_the_disk_give_the_same_batches_as_in_memory(folder: Path) -> None:
    streamed = open_data(str(folder)).images("train")
    assert isinstance(streamed.x, Files)
    order = epoch_batches(len(streamed), 7, generator())
    for workers in (1, 3):
        pairs = zip(streamed.batches(order, workers=workers), streamed.in_memory().batches(order), strict=True)
        for (x, y), (x_memory, y_memory) in pairs:
            assert torch.equal(x, x_memory)
            assert torch.equal(y, y_memory)
            assert x.is_contiguous(memory_format=torch.channels_last)
    assert streamed.mean_and_std() == streamed.in_memory().mean_and_std()
    x, _ = streamed.batch(slice(None))
    mean, std = streamed.mean_and_std()
    assert mean == pytest.approx([float(x.mean())], rel=1e-5)
    assert std == pytest.approx([float(x.std(correction=0))], rel=1e-5)


def test_reading_ahead_can_be_left_at_any_batch(folder: Path) -> None:
    streamed = open_data(str(folder)).images("train")
    batches = streamed.batches(epoch_batches(len(streamed), 7, generator()), workers=2)
    next(batches)
    batches.close()  # type: ignore[attr-defined]


def empty_a_class(folder: Path) -> None:
    (folder / "vest").mkdir()


def add_a_text_file(folder: Path) -> None:
    (folder / "hat" / "notes.txt").write_text("a hat")


def cut_an_image(folder: Path) -> None:
    path = picture(folder / "hat" / "cut.png", np.random.default_rng(0).integers(0, 256, (8, 6), np.uint8))
    path.write_bytes(path.read_bytes()[:-40])


def add_sixteen_bits(folder: Path) -> None:
    picture(folder / "hat" / "deep.png", np.zeros((8, 6), np.uint16))


def leave_one_class(folder: Path) -> None:
    for name in ("bag", "coat"):
        (folder / name).rename(folder.parent / name)


def leave_one_image(folder: Path) -> None:
    for path in list((folder / "hat").iterdir())[1:]:
        path.unlink()


def put_all_into_train(folder: Path) -> None:
    (folder / "train").mkdir()
    for name in ("bag", "coat", "hat"):
        (folder / name).rename(folder / "train" / name)


def forget_a_test_class(folder: Path) -> None:
    put_all_into_train(folder)
    picture(folder / "test" / "bag" / "a.png")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (empty_a_class, r"class 'vest' is empty"),
        (add_a_text_file, r"notes\.txt is not an image"),
        (cut_an_image, r"cannot read .*cut\.png"),
        (add_sixteen_bits, r"deep\.png: it has 16-bit pixels; white = 65535"),
        (leave_one_class, r"has hat; allowed: two or more folders"),
        (leave_one_image, r"class 'hat' .*one image; at least 2"),
        (put_all_into_train, r"train has folders of classes but there is no"),
        (forget_a_test_class, r"class 'coat' is in .*train but not in .*test"),
    ],
)
def test_bad_folders_are_refused_in_one_line(folder: Path, spoil: Callable[[Path], None], words: str) -> None:
    spoil(folder)
    with pytest.raises(UserError, match=words) as caught:
        [load(str(folder), split) for split in SPLITS]
    assert "\n" not in str(caught.value)


def test_hidden_files_are_not_images(folder: Path) -> None:
    for name in (".DS_Store", "Thumbs.db"):
        (folder / "hat" / name).write_bytes(b"?")
    assert len(load(str(folder), "train")) + len(load(str(folder), "test")) == 60


def test_resizing_is_for_own_images() -> None:
    with pytest.raises(UserError, match="resize = 32 with data mnist-small"):
        open_data("mnist-small", resize=32)
