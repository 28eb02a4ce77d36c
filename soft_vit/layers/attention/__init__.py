"""The attentions: one file each, one line each in the table."""

import difflib
from collections.abc import Iterable
from inspect import signature
from typing import Any

from soft_vit.layers.attention.agent import AgentAttention
from soft_vit.layers.attention.atrous import AtrousAttention
from soft_vit.layers.attention.base import Attention
from soft_vit.layers.attention.bigbird import BigBirdAttention
from soft_vit.layers.attention.circulant import CirculantAttention
from soft_vit.layers.attention.cosformer import CosformerAttention
from soft_vit.layers.attention.efficient import EfficientAttention
from soft_vit.layers.attention.focused import FocusedAttention
from soft_vit.layers.attention.gau import GatedAttentionUnit
from soft_vit.layers.attention.gaussian import GaussianAttention
from soft_vit.layers.attention.gla import GatedLinearAttention
from soft_vit.layers.attention.hedgehog import HedgehogAttention
from soft_vit.layers.attention.hydra import HydraAttention
from soft_vit.layers.attention.inline import InLineAttention
from soft_vit.layers.attention.linear import LinearAttention
from soft_vit.layers.attention.linformer import LinformerAttention
from soft_vit.layers.attention.local import LocalAttention
from soft_vit.layers.attention.longformer import LongformerAttention
from soft_vit.layers.attention.mala import MALAttention
from soft_vit.layers.attention.mila import MilaAttention
from soft_vit.layers.attention.mlstm import MLSTMAttention
from soft_vit.layers.attention.none import NoAttention
from soft_vit.layers.attention.nystrom import NystromAttention
from soft_vit.layers.attention.performer import PerformerAttention
from soft_vit.layers.attention.polaformer import PolaFormerAttention
from soft_vit.layers.attention.rala import RALAttention
from soft_vit.layers.attention.reformer import ReformerAttention
from soft_vit.layers.attention.rwkv import RWKVAttention
from soft_vit.layers.attention.rwkv6 import RWKV6Attention
from soft_vit.layers.attention.sima import SimpleAttention
from soft_vit.layers.attention.skyformer import SkyformerAttention
from soft_vit.layers.attention.soft import SoftAttention, SoftNormAttention, SoftPlusAttention
from soft_vit.layers.attention.softmax import SoftmaxAttention, SoftmaxOneAttention
from soft_vit.layers.attention.sparse import SparseAttention
from soft_vit.layers.attention.spatial_reduction import SpatialReductionAttention
from soft_vit.layers.attention.ssm import SSMAttention
from soft_vit.layers.attention.synthesizer import SynthesizerAttention
from soft_vit.layers.attention.ttt import TTTAttention
from soft_vit.layers.attention.ttt_glu import TTTGLUAttention
from soft_vit.layers.attention.vq import VQAttention
from soft_vit.layers.attention.vssd import VSSDAttention
from soft_vit.layers.attention.wfm import WeightFormerAttention

__all__ = ["ATTENTIONS", "Attention", "attention_class", "attention_options", "name_hint"]

ATTENTIONS: dict[str, type[Attention]] = {
    "soft": SoftAttention,
    "soft_norm": SoftNormAttention,
    "soft_plus": SoftPlusAttention,
    "softmax": SoftmaxAttention,
    "softmax_one": SoftmaxOneAttention,
    "gaussian": GaussianAttention,
    "spatial_reduction": SpatialReductionAttention,
    "linformer": LinformerAttention,
    "performer": PerformerAttention,
    "nystrom": NystromAttention,
    "linear": LinearAttention,
    "hedgehog": HedgehogAttention,
    "local": LocalAttention,
    "atrous": AtrousAttention,
    "sparse": SparseAttention,
    "reformer": ReformerAttention,
    "longformer": LongformerAttention,
    "bigbird": BigBirdAttention,
    "synthesizer": SynthesizerAttention,
    "gau": GatedAttentionUnit,
    "efficient": EfficientAttention,
    "hydra": HydraAttention,
    "sima": SimpleAttention,
    "cosformer": CosformerAttention,
    "focused": FocusedAttention,
    "inline": InLineAttention,
    "polaformer": PolaFormerAttention,
    "agent": AgentAttention,
    "skyformer": SkyformerAttention,
    "vq": VQAttention,
    "rala": RALAttention,
    "mala": MALAttention,
    "mila": MilaAttention,
    "ttt": TTTAttention,
    "ttt_glu": TTTGLUAttention,
    "wfm": WeightFormerAttention,
    "vssd": VSSDAttention,
    "gla": GatedLinearAttention,
    "rwkv": RWKVAttention,
    "rwkv6": RWKV6Attention,
    "mlstm": MLSTMAttention,
    "circulant": CirculantAttention,
    "ssm": SSMAttention,
    "none": NoAttention,
}
"""The attention types: name and class."""

# Arguments that a model gives every attention; options are those that a constructor passes on.
COMMON_ARGUMENTS = {"self", "dim", "num_heads", "feat_size", "sr_ratio", "device", "dtype", "options"}


def attention_class(name: str) -> type[Attention]:
    """Return the class of an attention by its name in `ATTENTIONS`; ValueError for another name."""
    if name not in ATTENTIONS:
        hint = name_hint(name, ATTENTIONS, f"use one of {', '.join(sorted(ATTENTIONS))}.")
        raise ValueError(f"attention must be a known name, got {name!r}; {hint}")
    return ATTENTIONS[name]


def name_hint(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return the end of an error about an unknown name: up to three similar known names, or else `otherwise`."""
    alike = difflib.get_close_matches(name, known, n=3)
    return f"did you mean {' or '.join(alike)}?" if alike else otherwise


def attention_options(cls: type[Attention]) -> dict[str, Any]:
    """Return names and defaults of the keyword arguments of an attention that are not the pyramid's.

    Constructors pass what they do not take themselves on to their base class. For an option that is None by default, a
    class may state what that means, as `default_NAME`.
    """
    found: dict[str, Any] = {}
    for base in cls.__mro__:
        if issubclass(base, Attention) and "__init__" in vars(base):
            parameters = signature(vars(base)["__init__"]).parameters.values()
            own = {p.name: p.default for p in parameters if p.name not in COMMON_ARGUMENTS}
            found = {**own, **found}
            if all(p.kind is not p.VAR_KEYWORD for p in parameters):
                break
    without = () if cls.traits.qk_of_each_token else ("key_norm", "qk_conv")
    return {name: getattr(cls, f"default_{name}", found[name]) for name in found if name not in without}
