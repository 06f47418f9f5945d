"""Images and their labels: published data sets and a user's own images, read from files and split into batches."""

from atent.data.dataset import DataSet, load, open_data
from atent.data.images import Images
from atent.data.published import SOURCES

__all__ = ["SOURCES", "DataSet", "Images", "load", "open_data"]
