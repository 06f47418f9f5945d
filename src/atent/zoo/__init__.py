"""Pretrained networks that come with the package: weights in half precision, an index and a model card each."""
