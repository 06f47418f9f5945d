import gzip
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

from atent.data.augmentation import AUGMENTATIONS, Augmentation, augment_affine, augment_crop_flip, augment_shift
from atent.data.dataset import load
from atent.data.images import Split, epoch_batches, hold_out
from atent.data.published import SOURCES
from atent.data.sums import SHA256
from atent.errors import UserError
from atent.models import Shape
from toys import SHARED, generator, needs_shared, stand_in


def test_mnist_small_is_balanced_and_complete() -> None:
    per_class: dict[Split, int] = {"train": 600, "test": 200}
    for split, count in per_class.items():
        images = load("mnist-small", split)
        assert images.x.shape == (10 * count, 1, 28, 28)
        assert images.y.bincount().tolist() == [count] * 10
        assert images.pixels().dtype == torch.uint8


@needs_shared
def test_mnist_small_is_a_part_of_mnist() -> None:
    for split in ("train", "test"):
        small, whole = (load(name, split, SHARED / "data") for name in ("mnist-small", "mnist"))
        known = {image.numpy().tobytes(): int(label) for image, label in zip(whole.pixels(), whole.y, strict=True)}
        assert all(
            known[image.numpy().tobytes()] == label for image, label in zip(small.pixels(), small.y, strict=True)
        )


def test_batches_are_floats_in_the_box_in_the_fast_layout() -> None:
    images = stand_in(Shape((3, 8, 8), 4), 6)
    x, y = images.batch(slice(2, 5))
    assert x.dtype == torch.float32
    assert torch.equal((x * 255).round().byte(), images.pixels()[2:5])
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(y, images.y[2:5])


def test_cifar_rows_are_label_then_planes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(0).integers(0, 256, (3, 3073), dtype=np.uint8)
    rows[:, 0] = (4, 0, 9)
    (tmp_path / "test_batch.bin").write_bytes(rows.tobytes())
    import hashlib

    monkeypatch.setitem(SOURCES["cifar10"].sums, "test_batch.bin", hashlib.md5(rows.tobytes()).hexdigest())
    monkeypatch.setitem(SHA256["cifar10"], "test_batch.bin", hashlib.sha256(rows.tobytes()).hexdigest())
    images = load("cifar10", "test", tmp_path)
    assert images.y.tolist() == [4, 0, 9]
    assert torch.equal(images.pixels()[1, 2, 0, :5], torch.from_numpy(rows[1, 1 + 2048 : 1 + 2053]))


@pytest.mark.parametrize("damage", ["tampered", "truncated", "flipped", "missing"])
def test_damaged_files_are_refused_with_their_name(tmp_path: Path, damage: str) -> None:
    packaged = Path(__file__).parents[1] / "src/atent/datasets/mnist-small"
    file = "t10k-images-idx3-ubyte"
    content = gzip.decompress((packaged / f"{file}.gz").read_bytes())
    if damage == "tampered":
        (tmp_path / file).write_bytes(content)
    elif damage == "truncated":
        (tmp_path / f"{file}.gz").write_bytes((packaged / f"{file}.gz").read_bytes()[:5000])
    elif damage == "flipped":
        packed = bytearray((packaged / f"{file}.gz").read_bytes())
        packed[1000] ^= 0xFF
        (tmp_path / f"{file}.gz").write_bytes(packed)
    with pytest.raises(UserError, match=file):
        load("mnist", "test", tmp_path)


def test_unknown_data_set_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"svhn.*mnist-small"):
        load("svhn", "train")


def test_held_out_images_are_balanced_and_disjoint() -> None:
    images = load("mnist-small", "train")
    kept, held = hold_out(images, 505, generator())
    assert len(kept) + len(held) == 6000
    assert set(held.y.bincount().tolist()) == {50, 51}
    assert torch.equal(hold_out(images, 505, generator())[1].pixels(), held.pixels())
    assert not torch.equal(hold_out(images, 505, generator(1))[1].pixels(), held.pixels())
    seen = {image.numpy().tobytes() for image in kept.pixels()}
    assert not any(image.numpy().tobytes() in seen for image in held.pixels())


@pytest.mark.parametrize("count", [-1, 6000])
def test_holding_out_everything_or_less_than_nothing_is_refused(count: int) -> None:
    with pytest.raises(UserError, match="allowed: 0 to 5999"):
        hold_out(load("mnist-small", "train"), count, generator())


def test_an_epoch_visits_every_image_once_but_no_batch_of_one() -> None:
    assert sorted(torch.cat(epoch_batches(10, 4, generator())).tolist()) == list(range(10))
    assert [len(batch) for batch in epoch_batches(9, 4, generator())] == [4, 4]


def test_crop_and_flip_shift_and_mirror() -> None:
    x = torch.arange(2 * 36, dtype=torch.float32).reshape(1, 2, 6, 6).expand(200, 2, 6, 6)
    out = augment_crop_flip(x, generator(), padding=1)
    assert out.shape == x.shape
    padded = torch.nn.functional.pad(x[:1], (1,) * 4)
    crops = [padded[0, :, i : i + 6, j : j + 6] for i in range(3) for j in range(3)]
    allowed = {tuple(crop.flatten().tolist()) for crop in [*crops, *(crop.flip(2) for crop in crops)]}
    seen = {tuple(image.flatten().tolist()) for image in out}
    assert seen == allowed  # all 18 of them in 200 draws
    assert torch.equal(out, augment_crop_flip(x, generator(), padding=1))
    shifted = {tuple(image.flatten().tolist()) for image in augment_shift(x, generator(), padding=1)}
    assert shifted == {tuple(crop.flatten().tolist()) for crop in crops}


@pytest.mark.parametrize(("height", "width"), [(28, 28), (24, 40)])
def test_affine_rotates_scales_and_shifts_as_much_as_it_says(height: int, width: int) -> None:
    """Three blobs' centres of mass before and after give the linear map and the shift of each image."""
    centre = torch.tensor([height - 1, width - 1]) / 2
    offsets = torch.tensor([[0.0, 0.0], [5.0, 0.0], [0.0, 5.0]])
    places = torch.stack(torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij"), dim=-1)
    blobs = (-(places - centre - offsets[:, None, None]).square().sum(-1) / 4).exp()[:, None]
    seen = []
    for blob in blobs:  # the same draws for each blob
        out = augment_affine(blob.expand(500, 1, height, width).contiguous(), generator())
        assert out.min() >= 0
        assert out.max() <= 1
        seen.append((out[:, 0, :, :, None] * places).sum((1, 2)) / out.sum((1, 2, 3))[:, None] - centre)
    middle, down, right = seen
    for moved in (down - middle, right - middle):
        assert moved.norm(dim=1).min().item() == pytest.approx(5 * 0.9, abs=0.1)
        assert moved.norm(dim=1).max().item() == pytest.approx(5 * 1.1, abs=0.1)
    sheared = ((down - middle) * (right - middle)).sum(1) / 25
    assert sheared.abs().max() < 0.02  # about 1 degree: the error of the interpolation
    angles = torch.atan2(*(right - middle).T).rad2deg()
    for values, limit, error in ((angles, 10, 0.5), *((shifts, 2, 0.1) for shifts in middle.T)):
        assert values.max().item() == pytest.approx(limit, abs=error)
        assert values.min().item() == pytest.approx(-limit, abs=error)
    assert torch.corrcoef(torch.stack([angles, *middle.T])).fill_diagonal_(0).abs().max() < 0.2  # 500 draws


def test_every_augmentation_has_a_name_and_keeps_the_order_in_memory() -> None:
    assert {*AUGMENTATIONS, "none"} == set(get_args(Augmentation))
    x = torch.rand(4, 3, 6, 8, generator=generator()).contiguous(memory_format=torch.channels_last)
    for augment in AUGMENTATIONS.values():
        assert augment(x, generator()).is_contiguous(memory_format=torch.channels_last)
