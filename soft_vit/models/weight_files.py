"""Weights in files: read without executing anything, taken out of what holds them, under this package's names."""

import argparse
import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from timm.models import clean_state_dict
from torch import Tensor

from soft_vit.models.recognition import NotedWeights

__all__ = [
    "AVERAGED_KEYS",
    "PLAIN_KEYS",
    "RELEASED_MODULES",
    "load_weights",
    "read_checkpoint_file",
    "rename_released",
    "require_finite",
    "state_dict_of",
    "unwrap_state_dict",
]

# Where training programs keep averaged and plain weights inside a checkpoint.
AVERAGED_KEYS = ("state_dict_ema", "model_ema")
PLAIN_KEYS = ("state_dict", "model")

# Names of the released SOFT implementation (first match of each kind), and ours.
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


def load_weights(path: str | Path) -> dict[str, Tensor]:
    """The state dict in a file, on the CPU: safetensors, or a torch checkpoint that holds one (EMA weights first).

    Raises what `read_checkpoint_file` raises, and ValueError for a file without a state dict.
    """
    return unwrap_state_dict(read_checkpoint_file(path), str(path))


def read_checkpoint_file(path: str | Path, map_location: Any = "cpu") -> Any:
    """The content of a file by torch.save, or the `NotedWeights` of a safetensors file; nothing in it is executed.

    FileNotFoundError for a missing file; ValueError, in one sentence, for one that is no checkpoint or would run code.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"There is no checkpoint {path}; give the path of a file that exists.")
    try:
        if path.suffix == ".safetensors":
            from safetensors import safe_open
            from safetensors.torch import load_file

            with safe_open(path, framework="pt") as file:
                noted = (file.metadata() or {}).get("model")
            return NotedWeights(load_file(path), noted)
        with _plain_namespaces():
            return torch.load(path, map_location=map_location, weights_only=True)
    except Exception as error:
        # Readers raise many types on bytes that are not theirs, and all of them mean the same to the caller.
        raise ValueError(
            f"The file {path} is not a checkpoint that can be read safely ({_reason(error)}); give a safetensors file, "
            f"or a torch file that holds weights and plain values alone."
        ) from error


def _plain_namespaces() -> contextlib.AbstractContextManager:
    """Let torch's safe reader build an argparse.Namespace, a bag of values in which training programs keep options."""
    # torch has it from 2.5 on; before, a file with options is refused.
    if hasattr(torch.serialization, "safe_globals"):
        return torch.serialization.safe_globals([argparse.Namespace])
    return contextlib.nullcontext()


def _reason(error: Exception) -> str:
    """What is wrong with a file, without torch's advice to switch the safety off."""
    refused = re.search(r"GLOBAL (\S+)|the file asks for ([^\n]+)", str(error))
    if refused is None:
        return "it is damaged or of another kind"
    return f"it asks for {refused[1] or refused[2]}, which could run code"


def unwrap_state_dict(content: Any, source: str = "the checkpoint") -> dict[str, Tensor]:
    """The tensors by name inside a loaded checkpoint; ValueError if there are none."""
    if isinstance(content, Mapping):
        for key in (*AVERAGED_KEYS, *PLAIN_KEYS):
            if isinstance(content.get(key), Mapping):
                content = content[key]
                break
    if not isinstance(content, Mapping) or not any(isinstance(value, Tensor) for value in content.values()):
        raise ValueError(
            f"{source} holds no state dict; give a file with parameters by name, as torch.save writes one."
        )
    return clean_state_dict({key: value for key, value in content.items() if isinstance(value, Tensor)})


def state_dict_of(content: Any, source: str = "the checkpoint") -> dict[str, Tensor]:
    """The tensors inside a loaded checkpoint under this package's names; ValueError if there are none."""
    return {rename_released(name): value for name, value in unwrap_state_dict(content, source).items()}


def rename_released(name: str) -> str:
    """Our name for a parameter of the released implementation; another name is returned as it is."""
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


def require_finite(state_dict: Mapping[str, Tensor], source: str) -> None:
    """ValueError, naming the first, if a weight is infinite or no number."""
    for name, value in state_dict.items():
        if value.is_floating_point() and not value.isfinite().all():
            raise ValueError(f"{name} in {source} has values that are not finite; get the file again, or another one.")
