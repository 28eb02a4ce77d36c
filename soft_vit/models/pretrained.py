"""Recorded weights for timm: their configurations, the file of each, and what stands in for one that is missing."""

from pathlib import Path
from typing import Any

from soft_vit.models.recognition import named_attention, recognise
from soft_vit.models.weight_files import read_checkpoint_file, require_finite, state_dict_of
from soft_vit.weights import Entry, WeightsError, load_index
from soft_vit.weights.download import download, recorded_digest
from soft_vit.weights.files import sha256_of
from soft_vit.weights.folders import INDEX_FILE, download_folder, lookup_folders, own_folder
from soft_vit.weights.transport import download_url, page_link

__all__ = ["ENTRIES", "check_command", "entry_cfg", "weights_file"]

# A package that is copied without its files has no recorded weights.
ENTRIES: dict[str, Entry] = {entry.name: entry for entry in load_index()} if INDEX_FILE.is_file() else {}


def entry_cfg(entry: Entry) -> dict[str, Any]:
    """What an entry says of timm's configuration of its model."""
    cfg = {**entry.cfg, "license": entry.license}
    if entry.sources:
        return {**cfg, "url": download_url(entry.sources[0], entry.file)}
    return {**cfg, "file": entry.file}


def require_recorded(model: str) -> None:
    """WeightsError for a model without recorded weights, with the names of those of its size that have some."""
    if any(entry.model == model for entry in ENTRIES.values()):
        return
    size = model.rsplit("_", 1)[-1]
    alike = [name for name, entry in ENTRIES.items() if entry.model.endswith(f"_{size}")]
    raise WeightsError(
        f"No pretrained weights exist for {model}; choose {' or '.join(alike) or 'one of timm.list_pretrained()'}, or "
        "give a file of your own with pretrained_cfg_overlay=dict(file=PATH), or use pretrained=False."
    )


def weights_file(entry: Entry, cache_dir: str | Path | None = None) -> Path:
    """The file of recorded weights: found in one of the folders, else downloaded.

    cache_dir: in the place of torch.hub's folder. Raises WeightsError, in one sentence.
    """
    for folder in lookup_folders(cache_dir):
        path = folder / entry.file
        if path.is_file():
            require_digest(entry, path)
            return path
    if not entry.sources:
        place = own_folder(cache_dir) / entry.file
        raise WeightsError(f"The weights {entry.name} have no address; put their file at {place}.")
    try:
        return download(entry, download_folder(cache_dir), lambda path: require_recognised(entry, path))
    except WeightsError as error:
        place = own_folder(cache_dir) / entry.file
        raise WeightsError(
            f"The weights {entry.name} cannot be downloaded ({error}); download {page_link(entry)} elsewhere, save "
            f"it as {place}, and check it with `{check_command(place)}`."
        ) from None


def check_command(path: Path) -> str:
    """The command that checks a file of weights."""
    return f"python -m soft_vit.models.check {path}"


def require_digest(entry: Entry, path: Path) -> None:
    """WeightsError for a file whose digest is not the recorded one."""
    expected = entry.sha256 or recorded_digest(path)
    if expected is not None and sha256_of(path) != expected:
        raise WeightsError(
            f"{path} is not the file of {entry.name}, or was changed (its sha256 does not begin with "
            f"{expected[:12]}); remove it, or see what it is with `{check_command(path)}`."
        )


def require_recognised(entry: Entry, path: Path) -> None:
    """ValueError, in one sentence, for a file that is not of a model that its name is recorded for."""
    content = read_checkpoint_file(path)
    state_dict = state_dict_of(content, str(path))
    found, attention = recognise(state_dict), named_attention(content)
    require_finite(state_dict, str(path))
    models = sorted({other.model for other in ENTRIES.values() if other.file == entry.file} | {entry.model})
    if any(model.endswith(f"_{found.size}") and attention in (None, model.rsplit("_", 1)[0]) for model in models):
        return
    noted = f", by what is noted in it of {attention}" if attention else ""
    raise ValueError(f"it is of {found}{noted}, and {entry.file} is recorded for {' or '.join(models)}.")
