"""What MMEngine needs: registered classes, safe checkpoints, and the runs behind the command lines.

Importing this package registers everything it holds and makes MMEngine's checkpoint loading safe.
"""

from . import environment, safe_checkpoint
from .atomic_storage import AtomicBackend
from .autocast import AutocastOptimWrapper
from .checkpoint_hook import SafeCheckpointHook
from .checkpoint_match import CheckpointMatchHook
from .classifier import TimmProgressClassifier
from .config import apply_options, load_config
from .errors import UserError
from .run import evaluate, train
from .shapes_dataset import ShapesDataset

safe_checkpoint.install()

__all__ = [
    "AtomicBackend",
    "AutocastOptimWrapper",
    "CheckpointMatchHook",
    "SafeCheckpointHook",
    "ShapesDataset",
    "TimmProgressClassifier",
    "UserError",
    "apply_options",
    "environment",
    "evaluate",
    "load_config",
    "train",
]
