"""Predictions for images on disk: classes, boxes with masks, maps of classes; as JSON and drawn."""

from soft_vit.prediction.choice import load_predictor
from soft_vit.prediction.config_predictor import ConfigPredictor
from soft_vit.prediction.predict import Report, predict_files
from soft_vit.prediction.results import ClassMap, Instances, RankedClasses, result_of
from soft_vit.prediction.timm_predictor import TimmPredictor

__all__ = [
    "ClassMap",
    "ConfigPredictor",
    "Instances",
    "RankedClasses",
    "Report",
    "TimmPredictor",
    "load_predictor",
    "predict_files",
    "result_of",
]
