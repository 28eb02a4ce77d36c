"""Trained models as files of ONNX, torch.export, OpenVINO, ExecuTorch, LiteRT and Core ML."""

from soft_vit.export.formats import FORMATS
from soft_vit.export.load import load_export_model
from soft_vit.export.model import ExportModel
from soft_vit.export.verified_file import export

__all__ = ["FORMATS", "ExportModel", "export", "load_export_model"]
