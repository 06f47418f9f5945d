"""What a network must fit: the images that go in and the classes that come out."""

from typing import NamedTuple


class Shape(NamedTuple):
    """The shape (channels, height, width) of an image and the number of classes."""

    image: tuple[int, int, int]
    classes: int
