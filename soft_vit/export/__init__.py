"""Trained models as files for other programs: ONNX and torch.export."""

from soft_vit.export.formats import FORMATS
from soft_vit.export.model import ExportModel, load_export_model
from soft_vit.export.verified_file import export

__all__ = ["FORMATS", "ExportModel", "export", "load_export_model"]
