"""Write a model to a file and verify the file against the model."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import shorten

import torch

from soft_vit.export.formats import FORMATS, MIN_SIDE, Run, as_list
from soft_vit.export.model import ExportModel
from soft_vit.export.quantization import check_drop, quantize
from soft_vit.text_tables import one_line
from soft_vit.weights.files import ensure_writable, write_atomically

BATCHES = (1, 5)
"""Batch sizes of the comparison: one image, and a size that differs from the captured one."""


def export(
    source: ExportModel,
    out: str | Path,
    format: str,
    *,
    any_size: bool = False,
    int8: bool = False,
    max_error: float = 1e-4,
    max_drop: float = 2.0,
    report: Callable[[str], None] = print,
) -> Path:
    """Write a model to a file that takes any batch, and verify the file on random images.

    format: a key of `FORMATS`. any_size: for images of any size. int8: quantise the ONNX file, see `quantize`.
    max_error: largest difference from the model, see `relative_error`. max_drop: largest loss of accuracy by int8, in
    points. report: called with a sentence for each step. `out` is written only after verification. Raises ValueError
    for incompatible options and for a file that differs from the model.
    """
    out = Path(out)
    suffix, write, open_file = FORMATS[format]
    if out.suffix != suffix:
        raise ValueError(f"out must end in {suffix} for {format}, got {out}.")
    if int8 and (format != "onnx" or source.outputs != ("logits",) or source.input_size[0] != 3):
        raise ValueError("int8 must be used with the format onnx and a classifier of RGB images.")
    ensure_writable(out)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / out.name
        size = "any size" if any_size else "{} x {}".format(*source.input_size[1:])
        report(f"Writing {source.name} as {format}, for any batch of images of {size}.")
        write(source, path, any_size=any_size)
        report("Comparing the file with the model on random images.")
        errors = compare(open_file(path), source, verified_sizes(source, any_size))
        for shape, error in errors.items():
            report(f"  {shape}: relative error {error:.1e}")
        worst = max(errors.values())
        if worst > max_error:
            raise ValueError(f"The file differs from the model by {worst:.1e}, more than --max-error {max_error:.0e}.")
        if int8:
            report("Quantising to int8, calibrated on generated images.")
            quantized = path.with_name(f"int8_{out.name}")
            report(f"  {quantize(path, quantized, source)}")
            report("Measuring both on generated images.")
            report(f"  {check_drop(path, quantized, source, max_drop)}")
            path = quantized
        write_atomically(out, path.read_bytes())
    error = "" if int8 else f", relative error {worst:.1e}"
    report(f"Written: {out} ({out.stat().st_size / 1e6:.1f} MB){error}")
    return out


def verified_sizes(source: ExportModel, any_size: bool) -> list[tuple[int, int]]:
    """Return sizes to compare at: the model's own and, with any_size, larger, smaller and elongated ones."""
    height, width = source.input_size[1:]
    others = [(height + 37, max(width - 11, MIN_SIDE)), (MIN_SIDE, 3 * width + 5), (2 * height - 1, MIN_SIDE)]
    # In the last stage, grids reach their limit of 7 windows on a side.
    others.append((MIN_SIDE, 8 * 32 + 37))
    return [(height, width), *(others if any_size else ())]


def compare(run: Run, source: ExportModel, sizes: Sequence[tuple[int, int]]) -> dict[str, float]:
    """Return the difference from the model, see `relative_error`, for each shape of random images.

    sizes: (H, W) of the images, each in all `BATCHES`. Raises ValueError if the file cannot run on a batch.
    """
    generator = torch.Generator().manual_seed(0)
    errors = {}
    for height, width in sizes:
        for batch in BATCHES:
            images = torch.randn(batch, source.input_size[0], height, width, generator=generator)
            shape = f"{batch} x {height} x {width}"
            with torch.no_grad():
                expected = as_list(source.model(images))
            try:
                given = run(images)
            except Exception as error:
                # Runtimes raise errors of many types.
                reason = shorten(one_line(error), 120)
                raise ValueError(f"The file cannot run on {shape} ({reason}); use --img-size for one size.") from error
            errors[shape] = relative_error(given, expected)
    return errors


def relative_error(given: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """Return the largest difference between outputs, each relative to the largest magnitude of the expected one.

    Infinite if outputs are missing, of another shape or not finite.
    """
    if [output.shape for output in given] != [output.shape for output in expected]:
        return float("inf")
    smallest = torch.finfo(torch.float32).tiny
    errors = [(a - b).abs().max() / b.abs().max().clamp(min=smallest) for a, b in zip(given, expected, strict=True)]
    # NaN is never above a threshold.
    return float(torch.stack(errors).nan_to_num(nan=float("inf")).max())
