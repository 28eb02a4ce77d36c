"""What a file of weights is: `python -m soft_vit.models.check FILE...`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from soft_vit.models.pretrained import ENTRIES, require_digest, require_recognised
from soft_vit.models.recognition import named_attention, recognise
from soft_vit.models.weight_files import read_checkpoint_file, require_finite, state_dict_of
from soft_vit.weights import WeightsError
from soft_vit.weights.files import sha256_of
from soft_vit.weights.folders import lookup_folders

__all__ = ["describe_file", "main"]


def describe_file(path: str | Path) -> list[str]:
    """A line for each thing that is known of a file of weights.

    Raises FileNotFoundError, or ValueError or WeightsError, in one sentence, for a file that is no checkpoint, not of
    a model of this package, not finite, or not what is recorded under its name.
    """
    path = Path(path).expanduser()
    content = read_checkpoint_file(path)
    entries = [entry for entry in ENTRIES.values() if entry.file == path.name]
    for entry in entries:
        require_digest(entry, path)
    state_dict = state_dict_of(content, str(path))
    found, attention = recognise(state_dict), named_attention(content)
    require_finite(state_dict, str(path))
    for entry in entries:
        require_recognised(entry, path)
    count = sum(value.numel() for value in state_dict.values())
    lines = [f"It holds weights of {found}: {count / 1e6:.2f} M numbers, all finite."]
    if attention is not None:
        lines.append(f"It was trained as {attention}_{found.size or '<unnamed>'}, by what is noted in it.")
    head = state_dict.get("head.weight")
    lines.append("It has no head." if head is None else f"Its head tells {head.shape[0]} classes apart.")
    lines.append(f"Its sha256 is {sha256_of(path)}.")
    return [*lines, _how_it_is_found(path, found.size)]


def _how_it_is_found(path: Path, size: str | None) -> str:
    fitting = [entry for entry in ENTRIES.values() if entry.model.endswith(f"_{size}")]
    here = [entry.name for entry in fitting if entry.file == path.name]
    if not here:
        known = dict.fromkeys(entry.file for entry in fitting if entry.sources)
        such_as = f", such as {' or '.join(known)}" if known else ""
        return f"No weights are recorded under the name {path.name}; pretrained=True looks for recorded names{such_as}."
    if path.resolve().parent in [folder.resolve() for folder in lookup_folders()]:
        return f"pretrained=True reads it for {' or '.join(here)}."
    return f"For pretrained=True of {' or '.join(here)}, put it into {' or '.join(map(str, lookup_folders()))}."


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Say what files of weights are, without running anything in them; exit code 1 if one is refused.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="a checkpoint of torch or safetensors")
    refused = False
    for file in parser.parse_args(argv).files:
        try:
            print(f"{file}: {' '.join(describe_file(file))}")
        except (ValueError, FileNotFoundError, WeightsError) as error:
            refused = True
            print(f"error: {file}: {error}", file=sys.stderr)
    if refused:
        raise SystemExit(1)


if __name__ == "__main__":
    main(prog="python -m soft_vit.models.check")
