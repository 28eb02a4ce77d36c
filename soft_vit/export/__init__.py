"""Trained models as files for other programs: ONNX, torch.export and TorchScript."""

from soft_vit.export.formats import FORMATS
from soft_vit.export.run import export
from soft_vit.export.subject import Subject, load_subject

__all__ = ["FORMATS", "Subject", "export", "load_subject"]
