"""Predictions for images on disk: classes, boxes with masks, label maps; as JSON and drawn."""

from soft_vit.predict.predict import Outcome, predict_files
from soft_vit.predict.predictors import ConfigPredictor, TimmPredictor, load_predictor
from soft_vit.predict.results import ClassMap, Instances, RankedClasses, result_of

__all__ = [
    "ClassMap",
    "ConfigPredictor",
    "Instances",
    "Outcome",
    "RankedClasses",
    "TimmPredictor",
    "load_predictor",
    "predict_files",
    "result_of",
]
