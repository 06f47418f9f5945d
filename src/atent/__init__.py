"""Train image classifiers that stay right when the input is attacked."""

__version__ = "0.1.0"
