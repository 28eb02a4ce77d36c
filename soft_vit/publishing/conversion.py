"""From one layout of weights to another."""

from pathlib import Path

from soft_vit.models import PYRAMID_MODELS
from soft_vit.ops.numerics import check_choice
from soft_vit.publishing.layouts import LAYOUTS, suffixes_of, written
from soft_vit.publishing.trained_file import TrainedFile, WeightsChoice, read_trained_file
from soft_vit.weights.files import write_atomically

__all__ = ["convert", "require_model"]


def convert(
    source: str | Path,
    target: str | Path,
    layout: str,
    *,
    weights: WeightsChoice | None = None,
    model: str | None = None,
    force: bool = False,
) -> list[str]:
    """Write the weights of a file in another layout, bit for bit; returns a sentence for each thing done.

    layout: one of `LAYOUTS`. weights: see `read_trained_file`. model: timm's name of the model, where the file does
    not say it. force: replace a file. Raises ValueError or FileNotFoundError.
    """
    target = Path(target)
    check_choice("layout", layout, LAYOUTS)
    if target.suffix not in suffixes_of(layout):
        raise ValueError(f"{target} does not end in {' or '.join(suffixes_of(layout))}, as files of {layout} do.")
    if target.exists() and not force:
        raise ValueError(f"{target} exists already; give another name, or --force to replace it.")
    file = read_trained_file(source, weights)
    name = require_model(file, model, needed=False)
    write_atomically(target, written(file, layout, name))
    sentences = [f"{source} holds weights of {name or file.recognised} in the layout {file.layout}."]
    if file.chosen is not None:
        sentences.append(f"It has two sets; the {'averaged' if file.chosen == 'ema' else 'plain'} ones were taken.")
    if file.dropped:
        sentences.append(f"Left out: {', '.join(file.dropped)}.")
    if layout in ("released", "timm") and file.notes.options:
        options = ", ".join(f"{key}={value!r}" for key, value in file.notes.options.items())
        sentences.append(f"This layout has no place for the options of the model: create it with {options}.")
    return [*sentences, f"Written: {target} ({layout}, {target.stat().st_size / 1e6:.1f} MB)."]


def require_model(file: TrainedFile, model: str | None, *, needed: bool = True) -> str | None:
    """The model's timm name: that asked for, or that in the file.

    ValueError where the two differ, the name is unknown, of another size, or needed and nowhere said.
    """
    if isinstance(file.recognised, str):
        if model not in (None, file.model):
            raise ValueError(f"The weights are of {file.model}, by their names and shapes, and not of {model}.")
        return file.model
    if model is None:
        if file.model is None and needed:
            size = file.recognised.size
            names = f"soft_{size} or soft_norm_{size}" if size else "a model of this package"
            raise ValueError(
                f"The weights are of {file.recognised}, and nothing says with which attention; give --model, such as "
                f"{names}."
            )
        return file.model
    if model not in PYRAMID_MODELS:
        raise ValueError(
            f"{model} is no pyramid of this package, and the weights are of one; give a name such as soft_tiny."
        )
    if file.model not in (None, model):
        raise ValueError(f"The weights are of {file.model}, by what is noted in the file, and not of {model}.")
    arguments = PYRAMID_MODELS[model]
    if (arguments["depths"], arguments["embed_dims"]) != (file.recognised.depths, file.recognised.widths):
        raise ValueError(f"The weights are of {file.recognised}, and {model} is of another size.")
    return model
