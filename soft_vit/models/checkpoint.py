"""The released SOFT's names of parameters and this package's, and what tells pyramids with equal names apart."""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from soft_vit.models.names import PYRAMID_MODELS
from soft_vit.weights.read import NotedWeights, Notes

__all__ = ["own_state_dict", "released_name", "rename_released"]

RELEASED_MODULES = {
    "att.mha.W_q.": "attn.q.",
    "att.mha.W_v.": "attn.v.",
    "att.mha.attn.Qlandmark_op.": "attn.sample.",
    "att.mha.attn.Qnorm_act.0.": "attn.sample_norm.",
    "att.mha.attn.conv.": "attn.local.",
    "att.mha.ff.": "attn.proj.",
    "att.norm": "norm",
    "att.ff": "mlp.fc",
}
"""Names of the released SOFT implementation (first match of each kind), and ours."""

# Of the last stage, whose blocks are those of a standard transformer, named alike in both.
STANDARD_MODULES = {name: name for name in ("norm", "attn.q.", "attn.kv.", "attn.proj.", "mlp.fc")}


def own_state_dict(state_dict: Mapping[str, Tensor], model: Any) -> dict[str, Tensor]:
    """Return released or converted weights under a pyramid's names.

    Raises ValueError if the file notes a model that computes something else with the same parameters.
    """
    notes = state_dict.notes if isinstance(state_dict, NotedWeights) else Notes()
    reversible = any(stage.reversible for stage in model.stages)
    own = model.attention[0]
    noted = notes.options.get("attention", PYRAMID_MODELS.get(notes.model or "", {}).get("attention"))
    if {str(noted), own} == {"soft", "soft_norm"}:
        raise ValueError(f"attention must be {noted!r}, as in {notes.model or 'the model'} of the file, got {own!r}.")
    if notes.options.get("reversible") and not reversible:
        raise ValueError("reversible must be True, as in the training of the weights, got False.")
    weights = {rename_released(name): value for name, value in state_dict.items()}
    if notes.options.get("reversible"):
        # Files of earlier versions have the names of plain blocks.
        weights = {re.sub(r"\.blocks\.(?=\d)", ".blocks.reversible.", name): value for name, value in weights.items()}
    return weights


def rename_released(name: str) -> str:
    """Our name for a parameter of the released implementation; any other name is returned as it is."""
    if match := re.match(r"pos_embed(\d)$", name):
        return f"stages.{int(match[1]) - 1}.pos_embed"
    if name == "cls_token":
        return "stages.3.cls_token"
    if match := re.match(r"patch_embed(\d)\.proj\.(\d)\.(.+)", name):
        # Every unit is convolution, norm, activation: three indices.
        unit, part = divmod(int(match[2]), 3)
        return f"stages.{int(match[1]) - 1}.patch_embed.{unit}.{('conv', 'norm')[part]}.{match[3]}"
    if match := re.match(r"block(\d)\.(\d+)\.(.+)", name):
        rest = match[3]
        for theirs, ours in RELEASED_MODULES.items():
            if rest.startswith(theirs):
                rest = ours + rest.removeprefix(theirs)
                break
        return f"stages.{int(match[1]) - 1}.blocks.{match[2]}.{rest}"
    return name


def released_name(name: str) -> str:
    """The released implementation's name for a parameter of ours, the inverse of `rename_released`.

    ValueError for a parameter that it does not have.
    """
    theirs = name
    if match := re.match(r"stages\.(\d)\.pos_embed$", name):
        theirs = f"pos_embed{int(match[1]) + 1}"
    elif name == "stages.3.cls_token":
        theirs = "cls_token"
    elif match := re.match(r"stages\.(\d)\.patch_embed\.(\d)\.(conv|norm)\.(.+)", name):
        # Every unit is convolution, norm, activation: three indices.
        index = 3 * int(match[2]) + ("conv", "norm").index(match[3])
        theirs = f"patch_embed{int(match[1]) + 1}.proj.{index}.{match[4]}"
    elif match := re.match(r"stages\.(\d)\.blocks\.(\d+)\.(.+)", name):
        stage, rest = int(match[1]) + 1, match[3]
        modules = STANDARD_MODULES if stage == 4 else {ours: theirs for theirs, ours in RELEASED_MODULES.items()}
        ours = next((module for module in modules if rest.startswith(module)), None)
        if ours is not None:
            theirs = f"block{stage}.{match[2]}.{modules[ours]}{rest.removeprefix(ours)}"
    known = theirs != name or name.startswith(("norm.", "head."))
    if not known or rename_released(theirs) != name:
        raise ValueError(f"The released implementation has no parameter for {name}; choose another layout.")
    return theirs
