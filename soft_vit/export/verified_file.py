"""From a model to a verified file."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from soft_vit.engine.errors import UserError
from soft_vit.export.formats import FORMATS, MIN_SIDE, check_suffix
from soft_vit.export.quantization import check_drop, quantize
from soft_vit.export.subject import Subject
from soft_vit.export.verification import compare
from soft_vit.weights.files import write_atomically

__all__ = ["MAX_ERROR", "export"]

MAX_ERROR = 1e-4


def export(
    subject: Subject,
    out: str | Path,
    format: str,
    *,
    any_size: bool = False,
    opset: int | None = None,
    int8: bool = False,
    max_error: float = MAX_ERROR,
    max_drop: float = 2.0,
    report: Callable[[str], None] = print,
) -> Path:
    """Write a model to a file that takes any batch, and verify it against the model on random images.

    format: a key of `FORMATS`. any_size: for images of any size. opset: of ONNX, by default torch's. int8: quantise
    the ONNX file afterwards, see `quantize`; max_drop: the most points of accuracy that this may cost. report: gets a
    sentence for each step. The file appears only when it has passed. Raises UserError (a ValueError) when it does not.
    """
    out = Path(out)
    check_suffix(out, format)
    if any_size and not FORMATS[format].any_size:
        raise UserError(f"A file of {format} takes one size of images; leave --dynamic-size out, or choose another.")
    for given, name in ((int8, "--int8"), (opset is not None, "--opset")):
        if given and format != "onnx":
            raise UserError(f"{name} belongs to ONNX, and the format is {format}; use --format onnx, or leave it out.")
    if int8 and (subject.outputs != ("logits",) or subject.input_size[0] != 3):
        raise UserError("int8 is calibrated and measured on classes of RGB images; give a classifier of those.")
    steps = 5 if int8 else 3
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / out.name
        size = "any size" if any_size else "{} x {}".format(*subject.input_size[1:])
        report(f"[1/{steps}] Writing {subject.name} as {format}, for any batch of images of {size}.")
        FORMATS[format].write(subject, path, any_size=any_size, opset=opset)
        report(f"[2/{steps}] Comparing the file with the model on random images.")
        errors = compare(FORMATS[format].open(path), subject, verified_sizes(subject, any_size))
        for shape, error in errors.items():
            report(f"  {shape}: max absolute error {error:.1e}")
        worst = max(errors.values())
        if worst > max_error:
            raise UserError(
                f"The file differs from the model by up to {worst:.1e}, and {max_error:.0e} is allowed; nothing was "
                "written."
            )
        if int8:
            report(f"[3/{steps}] Quantising to int8, calibrated on generated images.")
            quantized = Path(folder) / f"int8_{out.name}"
            report(f"  {quantize(path, quantized, subject)}")
            report(f"[4/{steps}] Measuring both on generated images.")
            drop = check_drop(path, quantized, subject, max_drop)
            report(f"  {drop}")
            path = quantized
        write_atomically(out, path.read_bytes())
    report(f"[{steps}/{steps}] Written: {out} ({out.stat().st_size / 1e6:.1f} MB), max absolute error {worst:.1e}")
    return out


def verified_sizes(subject: Subject, any_size: bool) -> list[tuple[int, int]]:
    """Sizes to compare at: the model's own and, with any_size, others above and below it and long ones, mostly odd."""
    height, width = subject.input_size[1:]
    others = [(height + 37, max(width - 11, MIN_SIDE)), (MIN_SIDE, 3 * width + 5), (2 * height - 1, MIN_SIDE)]
    return [(height, width), *(others if any_size else ())]
