"""What a file of trained weights holds, taken apart: the weights, what is known of their training, and the rest."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from torch import Tensor

from soft_vit.engine.models.notes import trained_notes
from soft_vit.engine.optim.ema_hook import choose_weights
from soft_vit.engine.resume.read import load_checkpoint_file
from soft_vit.models import PYRAMID_MODELS
from soft_vit.models.checkpoint import Recognised
from soft_vit.models.zoo import recognise_weights
from soft_vit.ops.numerics import check_choice
from soft_vit.weights.read import AVERAGED_KEYS, PLAIN_KEYS, NotedWeights, Notes, require_finite, unwrap_state_dict

__all__ = ["TrainedFile", "WeightsChoice", "read_trained_file"]

WeightsChoice = Literal["ema", "plain"]
"""Averaged or plain weights of a training checkpoint."""


@dataclass(frozen=True)
class TrainedFile:
    """weights: under this package's names, in the order of the file. layout: a key of `LAYOUTS`. recognised: the sizes
    of a pyramid, or the name of another model. notes: what is known of the model, see `trained_notes`.
    chosen: which of two sets of weights these are; None if there is one. dropped: what else the file holds.
    """

    weights: dict[str, Tensor]
    layout: str
    recognised: Recognised | str
    notes: Notes
    chosen: WeightsChoice | None = None
    dropped: tuple[str, ...] = ()

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, if the file has them."""
        return self.notes.cfg.get("label_names", ())

    @property
    def model(self) -> str | None:
        """The timm name of the model, if the file notes it or no other has such weights."""
        if isinstance(self.recognised, str):
            return self.recognised
        return self.notes.model if self.notes.model in PYRAMID_MODELS else None


def read_trained_file(path: str | Path, weights: WeightsChoice | None = None) -> TrainedFile:
    """Take a file apart; nothing in it is executed.

    weights: averaged (`ema`) or `plain`, by default the averaged ones if there are some. Raises FileNotFoundError, or
    ValueError for a file that is not a checkpoint, belongs to no model here, is not finite, or lacks
    the weights asked for.
    """
    if weights is not None:
        check_choice("weights", weights, get_args(WeightsChoice))
    content = load_checkpoint_file(path)
    safetensors = Path(path).suffix == ".safetensors"
    of_mmengine = not safetensors and "meta" in content and isinstance(content.get("state_dict"), Mapping)
    notes = trained_notes(content, path)
    given, chosen = _choose(content, of_mmengine, weights, path)
    recognised, state_dict = recognise_weights(NotedWeights(given, notes))
    require_finite(state_dict, str(path))
    released = any(state_dict.get(name) is not value for name, value in given.items())
    layout = "released" if released else "safetensors" if safetensors else "mmengine" if of_mmengine else "timm"
    # A safetensors file, and a bare state dict, hold nothing else.
    bare = safetensors or all(isinstance(value, Tensor) for value in content.values())
    dropped = () if bare else tuple(str(name) for name in content if name not in PLAIN_KEYS)
    return TrainedFile(state_dict, layout, recognised, notes, chosen, dropped)


def _choose(
    content: dict[str, Any], of_mmengine: bool, weights: WeightsChoice | None, path: str | Path
) -> tuple[dict[str, Tensor], WeightsChoice | None]:
    """The chosen weights of a checkpoint under the names in it, and which of two sets they are."""
    if of_mmengine:
        both = content.get("ema_state_dict") is not None
        if weights is not None:
            choose_weights(content, weights == "ema")
        return unwrap_state_dict(content["state_dict"], str(path)), (weights or "ema") if both else None
    found = {
        choice: next((content[key] for key in keys if isinstance(content.get(key), Mapping)), None)
        for choice, keys in (("ema", AVERAGED_KEYS), ("plain", PLAIN_KEYS))
    }
    if weights == "ema" and found["ema"] is None:
        raise ValueError(f"{path} holds no averaged weights (EMA); take its plain ones.")
    if weights == "plain" and found["plain"] is None and found["ema"] is not None:
        raise ValueError(f"{path} holds averaged weights (EMA) alone; take those.")
    choice = weights or ("ema" if found["ema"] is not None else "plain")
    both = None not in found.values()
    return unwrap_state_dict(found[choice] or content, str(path)), choice if both else None
