"""How many images a training has, of which shape: of a published data set, of a user's own, or as the user states."""

import math
import re
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch

from atent.data.dataset import open_data
from atent.data.given import Given
from atent.data.images import Images, Split, held_out_of
from atent.data.published import SOURCES
from atent.errors import UserError
from atent.machine import ram_bytes
from atent.network import Shape
from atent.recipe import Recipe

FEW = 8  # batches, of images that do not fit into memory
HINT = "atent plan needs no images: --images N --shape 3x224x224 --classes K describe them"


class Sizes(NamedTuple):
    """The number of training and test images, and their shape."""

    train: int
    test: int
    shape: Shape

    def trained(self, recipe: Recipe) -> int:
        """The training images without those held out."""
        return self.train - held_out_of(self.train, recipe.validation)

    def batches(self, recipe: Recipe) -> int:
        """In an epoch."""
        images = self.trained(recipe)
        whole, rest = divmod(images, recipe.batch)
        return max(whole + (rest > 1 or (rest == 1 and not whole)), 1)

    def evaluated(self, recipe: Recipe) -> int:
        """The images that are evaluated after each epoch."""
        return min(self.train - self.trained(recipe), recipe.monitor_examples)


def find_sizes(
    recipe: Recipe, data_dir: Path | None, images: int | None, shape: str | None, classes: int | None
) -> Sizes:
    """What the user states, or what the data is; a published data set need not be there."""
    stated = (images, shape, classes)
    if any(one is not None for one in stated):
        if images is None or shape is None or classes is None:
            raise UserError("--images, --shape and --classes describe images that are not here; give all three or none")
        return Sizes(images, images // 10, Shape(_parsed(shape), classes))
    if source := SOURCES.get(recipe.data):
        return Sizes(*source.counts, Shape(source.image, len(source.classes)))
    try:
        data = open_data(recipe.data, data_dir, resize=recipe.resize, white=recipe.white, test_share=recipe.test_share)
        train = data.images("train")
        return Sizes(len(train), len(data.images("test")), train.shape)
    except UserError as error:
        raise UserError(f"{error}. {HINT}") from None


def _parsed(shape: str) -> tuple[int, int, int]:
    found = re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,4})x([1-9]\d{0,4})", shape)
    if found is None:
        raise UserError(f"--shape {shape}; allowed: channels x height x width, such as 3x224x224")
    channels, height, width = map(int, found.groups())
    return channels, height, width


class StandIn(Given):
    """Random images in the place of those that are not here, made whenever they are asked for, as files are read.

    As many as there are, so that they take the same memory; of more than a training keeps in memory, a few batches.
    """

    record: ClassVar[dict[str, Any]] = {}  # nothing to recognize them by

    def images(self, split: Split) -> Images:
        del split
        x = torch.empty(self.train.x.shape, dtype=torch.uint8).random_(256)
        copies = [x.clone() for _ in range(2)]  # those of a reader: the content of the files, joined
        del copies
        return Images(x, torch.arange(len(x)) % len(self.train.classes), self.train.classes)


def stand_in(sizes: Sizes, batch: int) -> StandIn:
    """The images of these sizes."""
    count = sizes.train
    if count * math.prod(sizes.shape.image) > ram_bytes() / 4:
        count = min(count, FEW * batch)
    shape = torch.empty(1, dtype=torch.uint8).expand(count, *sizes.shape.image)  # no memory of its own
    names = tuple(map(str, range(sizes.shape.classes)))
    return StandIn(Images(shape, torch.empty(0, dtype=torch.int64), names), "random images")
