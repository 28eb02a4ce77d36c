"""The pyramid, ViTs and families of other authors, which are registered with timm on import.

`PYRAMID_MODELS` has the arguments of each named pyramid, `PYRAMID_SIZES` those of each size, and `FAMILY_MODELS` those
of the models of other authors. `model_name` returns the name of a pyramid.
"""

from soft_vit.models.base import FAMILY_MODELS
from soft_vit.models.ca_deit import *  # noqa: F403 - the entrypoints, which register_named lists in __all__
from soft_vit.models.care import *  # noqa: F403 - as above
from soft_vit.models.efficientvit import *  # noqa: F403 - as above
from soft_vit.models.flatten import *  # noqa: F403 - as above
from soft_vit.models.folding import fold_batch_norm
from soft_vit.models.inline import *  # noqa: F403 - as above
from soft_vit.models.mavit import *  # noqa: F403 - as above
from soft_vit.models.mila import *  # noqa: F403 - as above
from soft_vit.models.polaformer import *  # noqa: F403 - as above
from soft_vit.models.pyramid import *  # noqa: F403 - as above
from soft_vit.models.ravlt import *  # noqa: F403 - as above
from soft_vit.models.soft import *  # noqa: F403 - as above
from soft_vit.models.swap import SwapReport, swap_attention
from soft_vit.models.vig import *  # noqa: F403 - as above
from soft_vit.models.vil import *  # noqa: F403 - as above
from soft_vit.models.vit import *  # noqa: F403 - as above
from soft_vit.models.vit3 import *  # noqa: F403 - as above
from soft_vit.models.vmamba import *  # noqa: F403 - as above
from soft_vit.models.vrwkv import *  # noqa: F403 - as above
from soft_vit.models.vssd import *  # noqa: F403 - as above
from soft_vit.models.weightformer import *  # noqa: F403 - as above
from soft_vit.weights.load import checkpoint_filter_fn
from soft_vit.weights.read import load_weights

__all__ = ["FAMILY_MODELS", "SwapReport", "checkpoint_filter_fn", "fold_batch_norm", "load_weights", "swap_attention"]
