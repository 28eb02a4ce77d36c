"""What MMEngine needs: registered classes, safe checkpoints, and the runs behind the command lines.

Importing this package registers everything it holds, lets mmpretrain find the recorded models by name, and makes
MMEngine's checkpoint loading safe.
"""

from soft_vit.engine import environment, safe_checkpoint
from soft_vit.engine.atomic_storage import AtomicBackend
from soft_vit.engine.bad_images import BadImagesHook
from soft_vit.engine.checkpoint_hook import SafeCheckpointHook
from soft_vit.engine.checkpoint_match import CheckpointMatchHook
from soft_vit.engine.classifier import TimmProgressClassifier
from soft_vit.engine.config import apply_options, load_config
from soft_vit.engine.data_preprocessor import RecipeDataPreprocessor
from soft_vit.engine.distillation import DistillClassifier
from soft_vit.engine.ema_hook import EMAEvalHook
from soft_vit.engine.errors import UserError
from soft_vit.engine.eval_transform import LoadedImage, TimmEvalCrop
from soft_vit.engine.evaluation import evaluate
from soft_vit.engine.finetune import StartWeightsHook
from soft_vit.engine.history_hook import ShortHistoryHook
from soft_vit.engine.image_dataset import ImageTree
from soft_vit.engine.json_log import JsonLinesBackend
from soft_vit.engine.log_processor import ProgressLogProcessor
from soft_vit.engine.metrics import ClassificationMetric
from soft_vit.engine.model_index import register_models
from soft_vit.engine.optim_constructor import TimmOptimWrapperConstructor
from soft_vit.engine.optim_wrapper import SafeOptimWrapper
from soft_vit.engine.run import train
from soft_vit.engine.shapes_dataset import ShapesDataset
from soft_vit.engine.transforms import AlbumentationsTransform, TimmAugment
from soft_vit.engine.watch_hook import WatchHook

safe_checkpoint.install()
register_models()

__all__ = [
    "AlbumentationsTransform",
    "AtomicBackend",
    "BadImagesHook",
    "CheckpointMatchHook",
    "ClassificationMetric",
    "DistillClassifier",
    "EMAEvalHook",
    "ImageTree",
    "JsonLinesBackend",
    "LoadedImage",
    "ProgressLogProcessor",
    "RecipeDataPreprocessor",
    "SafeCheckpointHook",
    "SafeOptimWrapper",
    "ShapesDataset",
    "ShortHistoryHook",
    "StartWeightsHook",
    "TimmAugment",
    "TimmEvalCrop",
    "TimmOptimWrapperConstructor",
    "TimmProgressClassifier",
    "UserError",
    "WatchHook",
    "apply_options",
    "environment",
    "evaluate",
    "load_config",
    "register_models",
    "train",
]
