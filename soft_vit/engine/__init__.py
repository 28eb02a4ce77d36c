"""Train and test with MMEngine: registered classes, safe checkpoints, and the runs behind the command lines.

`config` resolves a config in three steps, `merge` (file, options, shared values), `ask` (weights, data) and `machine`;
`run` trains, and `evaluate` tests. What configs name lies in `data`, `hooks`, `models`, `optim` and `metrics`, a file a
subject: a decorator registers the class, and an import below makes it known. `resume` holds loops that resume exactly.

Importing this package registers everything it holds, lets mmpretrain find the recorded models by name, and makes
MMEngine's checkpoint loading safe. Configs in pure Python import the classes from here.
"""

# ruff: noqa: E402, F401  settings come before the imports, which register
import os
import warnings

# Both before mmpretrain is imported: Albumentations would ask the package index for updates, and mmcv-lite lacks a
# class that is not used here.
os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
warnings.filterwarnings("ignore", message="Fail to import ``MultiScaleDeformableAttention``")

import mmpretrain.utils.dependency

# mmpretrain 1.2's models of images and text are of transformers 4, and its import fails where 5 is installed.
mmpretrain.utils.dependency.WITH_MULTIMODAL = False

from soft_vit.engine.config import resolve
from soft_vit.engine.data.bad_images import BadImagesHook
from soft_vit.engine.data.bags import BagDataset
from soft_vit.engine.data.datasets import ImageTree, ShapesDataset, TimmDataset
from soft_vit.engine.data.naflex import NaFlexDataPreprocessor, NaFlexDataset, OvalsDataset, TokenBudgetSampler
from soft_vit.engine.data.preprocessor import RecipeDataPreprocessor
from soft_vit.engine.data.transforms import AlbumentationsTransform, LoadedImage, TimmAugment, TimmEvalCrop
from soft_vit.engine.data.unlabelled import UnlabelledDataset
from soft_vit.engine.evaluate import evaluate
from soft_vit.engine.hooks.attention_report import AttentionReportHook
from soft_vit.engine.hooks.checkpoint import AtomicBackend, SafeCheckpointHook
from soft_vit.engine.hooks.checks import RunChecksHook
from soft_vit.engine.hooks.diagnostics import DiagnosticsHook
from soft_vit.engine.hooks.pretraining import PretrainingReportHook
from soft_vit.engine.hooks.progress import JsonLinesBackend, ProgressLogProcessor, ShortHistoryHook
from soft_vit.engine.hooks.summary import SummaryHook
from soft_vit.engine.hooks.throughput import ThroughputHook
from soft_vit.engine.hooks.weights import WeightsHook
from soft_vit.engine.metrics import AreaUnderCurve, ClassificationMetric
from soft_vit.engine.models.bags import BagClassifier
from soft_vit.engine.models.classifier import TimmTrainClassifier
from soft_vit.engine.models.distillation import DistillClassifier
from soft_vit.engine.models.feature_redraw import FeatureRedrawHook
from soft_vit.engine.models.masked import MaskedImageModel
from soft_vit.engine.models.mesa import MesaClassifier, MesaHook
from soft_vit.engine.models.model_index import register_models
from soft_vit.engine.optim.ema_hook import EMAEvalHook
from soft_vit.engine.optim.optim_constructor import TimmOptimWrapperConstructor
from soft_vit.engine.optim.optim_wrapper import SafeOptimWrapper
from soft_vit.engine.optim.timm_optim import TimmLR
from soft_vit.engine.pretrain import pretrain
from soft_vit.engine.resume import loops, position, read, stop
from soft_vit.engine.run import train

read.install()
register_models()

__all__ = ["evaluate", "pretrain", "resolve", "train"]
