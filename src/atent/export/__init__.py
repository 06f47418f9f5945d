"""A trained network for other programs: a folder for the Hugging Face Hub, ONNX, torch.export, RobustBench."""

from atent.export.folder import export_run

__all__ = ["export_run"]
