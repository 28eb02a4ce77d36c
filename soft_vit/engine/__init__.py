"""What MMEngine needs: registered classes, safe checkpoints, and the runs behind the command lines.

Importing this package registers everything it holds and makes MMEngine's checkpoint loading safe.
"""

from soft_vit.engine import environment, safe_checkpoint
from soft_vit.engine.atomic_storage import AtomicBackend
from soft_vit.engine.autocast import AutocastOptimWrapper
from soft_vit.engine.checkpoint_hook import SafeCheckpointHook
from soft_vit.engine.checkpoint_match import CheckpointMatchHook
from soft_vit.engine.classifier import TimmProgressClassifier
from soft_vit.engine.config import apply_options, load_config
from soft_vit.engine.errors import UserError
from soft_vit.engine.evaluation import evaluate
from soft_vit.engine.optim_constructor import TimmOptimWrapperConstructor
from soft_vit.engine.run import train
from soft_vit.engine.shapes_dataset import ShapesDataset

safe_checkpoint.install()

__all__ = [
    "AtomicBackend",
    "AutocastOptimWrapper",
    "CheckpointMatchHook",
    "SafeCheckpointHook",
    "ShapesDataset",
    "TimmOptimWrapperConstructor",
    "TimmProgressClassifier",
    "UserError",
    "apply_options",
    "environment",
    "evaluate",
    "load_config",
    "train",
]
