"""What a file of weights is; `tools/weights/check_checkpoint.py` prints it."""

from collections.abc import Sequence
from pathlib import Path

from soft_vit.models.checkpoint import noted_attention
from soft_vit.models.zoo import recognise_weights
from soft_vit.weights import ENTRIES
from soft_vit.weights.files import lookup_folders, sha256_of
from soft_vit.weights.load import require_digest, require_recorded_model
from soft_vit.weights.read import load_weights, require_finite

__all__ = ["describe_file"]


def describe_file(path: str | Path) -> list[str]:
    """A line for each thing that is known about a file of weights.

    Raises FileNotFoundError, or ValueError, in one sentence, for a file that is not a checkpoint, belongs to no model
    of this package, is not finite, or is not what is recorded under its name.
    """
    path = Path(path).expanduser()
    weights = load_weights(path)
    entries = [entry for entry in ENTRIES.values() if entry.file == path.name]
    for entry in entries:
        require_digest(entry, path)
    require_finite(weights, str(path))
    found, state_dict = recognise_weights(weights)
    if isinstance(found, str):
        models = [found]
    else:
        models = [entry.model for entry in ENTRIES.values() if entry.model.endswith(f"_{found.size}")]
    if entries:
        require_recorded_model(entries[0], weights, str(path))
    count = sum(value.numel() for value in state_dict.values())
    lines = [f"It holds weights of {found}: {count / 1e6:.2f} M numbers, all finite."]
    if attention := noted_attention(weights.notes):
        lines.append(f"It was trained as {weights.notes.model}, with the attention {attention!r}, as noted in it.")
    head = state_dict.get("head.weight")
    lines.append("It has no head." if head is None else f"Its head tells {head.shape[0]} classes apart.")
    lines.append(f"Its sha256 is {sha256_of(path)}.")
    return [*lines, _how_it_is_found(path, models)]


def _how_it_is_found(path: Path, models: Sequence[str]) -> str:
    """models: whose recorded weights the file may be."""
    fitting = [entry for entry in ENTRIES.values() if entry.model in models]
    here = [entry.name for entry in fitting if entry.file == path.name]
    if not here:
        known = dict.fromkeys(entry.file for entry in fitting if entry.sources)
        such_as = f", such as {' or '.join(known)}" if known else ""
        return f"No weights are recorded under the name {path.name}; pretrained=True looks for recorded names{such_as}."
    if path.resolve().parent in [folder.resolve() for folder in lookup_folders()]:
        return f"pretrained=True reads it for {' or '.join(here)}."
    return f"For pretrained=True of {' or '.join(here)}, put it into {' or '.join(map(str, lookup_folders()))}."
