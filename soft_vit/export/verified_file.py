"""Write a model to a file and verify the file against the model."""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import shorten

import torch

from soft_vit.export.formats import FORMATS, Run, as_list
from soft_vit.export.model import ExportModel
from soft_vit.export.quantization import QUANTIZERS, check_drop
from soft_vit.ops.layout import Size
from soft_vit.text_tables import one_line
from soft_vit.weights.files import ensure_writable, write_atomically

BATCHES = (1, 5)
"""Batch sizes of the comparison: one image, and a size that differs from the captured one."""
MAX_ERROR, MAX_HALF_ERROR = 1e-4, 1e-2


def export(
    source: ExportModel,
    out: str | Path,
    format: str,
    *,
    any_size: bool = False,
    half: bool = False,
    preprocessing: bool = False,
    int8: bool = False,
    images: str | Path | None = None,
    max_error: float | None = None,
    max_drop: float = 2.0,
    report: Callable[[str], None] = print,
) -> Path:
    """Write a model to a file, and verify the file on random images.

    format: a key of `FORMATS`; those of phones take one image, others any batch. any_size: for images of any size.
    half: in fp16, see `ExportModel.half`. preprocessing: for images in uint8, see `ExportModel.with_preprocessing`.
    int8: quantise a file of ONNX or OpenVINO, see `quantize`. images: the folder of a data set, whose `train`
    calibrates int8 and whose `val` measures it; by default images are generated. max_error: largest difference from the
    model, see `relative_error`; by default 1e-4, or 1e-2 with half. max_drop: largest loss by int8, see `check_drop`.
    report: called with a sentence for each step. `out`, and files beside it, are written only after verification.
    Raises ValueError for incompatible options and for a file that differs from the model.
    """
    out = Path(out)
    suffix, write, open_file, any_batch = FORMATS[format]
    if out.suffix != suffix:
        raise ValueError(f"out must end in {suffix} for {format}, got {out}.")
    if int8 and (format not in QUANTIZERS or half or source.outputs != ("logits",) or source.input_size[0] != 3):
        names = " or ".join(QUANTIZERS)
        raise ValueError(f"int8 must be used with the format {names}, without half, and a classifier of RGB images.")
    if any_size and not any_batch:
        raise ValueError(f"any_size must be used with onnx, openvino or torch_export, got {format}.")
    max_error = max_error or (MAX_HALF_ERROR if half else MAX_ERROR)
    ensure_writable(out)
    written = source.half() if half else source
    if preprocessing:
        source, written = source.with_preprocessing(), written.with_preprocessing()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / out.name
        size = "any size" if any_size else "{} x {}".format(*source.input_size[1:])
        batch = "any batch of images" if any_batch else "one image"
        report(f"Writing {source.name} as {format}, for {batch} of {size}.")
        try:
            write(written, path, **({"any_size": any_size} if any_batch else {}))
        except (ValueError, OSError, ImportError):
            raise
        except Exception as error:
            # Converters raise errors of many types, and wrap the cause in long reports.
            cause: BaseException = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            reason = one_line(cause).split(". ")[0]
            raise ValueError(f"{source.name} cannot be translated to {format} ({reason}).") from error
        run = open_file(path)
        if run is None:
            report("Only the specification was checked: the file cannot run on this machine.")
        else:
            report("Comparing the file with the model on random images.")
        batches = BATCHES if any_batch else BATCHES[:1]
        errors = compare(run, source, verified_sizes(source, any_size), batches) if run else {}
        for shape, error in errors.items():
            report(f"  {shape}: relative error {error:.1e}")
        worst = max(errors.values(), default=0.0)
        if worst > max_error:
            raise ValueError(f"The file differs from the model by {worst:.1e}, more than --max-error {max_error:.0e}.")
        if int8:
            root = None if images is None else Path(images)
            report(f"Quantising to int8, calibrated on {root or 'generated images'}.")
            quantized = path.with_name(f"int8_{out.name}")
            report(f"  {QUANTIZERS[format](path, quantized, source, root)}")
            report(f"Measuring both on {root or 'generated images'}.")
            report(f"  {check_drop(path, quantized, source, max_drop, root, open_file)}")
            for file in path.parent.glob("int8_*"):
                file.replace(file.with_name(file.name.removeprefix("int8_")))
        # The file last: who finds it finds the weights and metadata beside it.
        files = sorted(path.parent.iterdir(), key=path.__eq__)
        size_in_bytes = sum(place(file, out.with_name(file.name)) for file in files)
    error = "" if int8 or run is None else f", relative error {worst:.1e}"
    report(f"Written: {out} ({size_in_bytes / 1e6:.1f} MB){error}")
    return out


def place(source: Path, target: Path) -> int:
    """Copy a file atomically, or a folder; return its size in bytes."""
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
        return sum(file.stat().st_size for file in target.rglob("*"))
    write_atomically(target, source.read_bytes())
    return target.stat().st_size


def verified_sizes(source: ExportModel, any_size: bool) -> list[Size]:
    """Return sizes to compare at: the model's own and, with any_size, larger, smaller and elongated ones."""
    (height, width), least = source.input_size[1:], source.min_side
    others = [(height + 37, max(width - 11, least)), (least, 3 * width + 5), (2 * height - 1, least)]
    # In the last stage, grids reach their limit of 7 windows on a side.
    others.append((least, 8 * 32 + 37))
    return [(height, width), *(others if any_size else ())]


def compare(run: Run, source: ExportModel, sizes: Sequence[Size], batches: Sequence[int] = BATCHES) -> dict[str, float]:
    """Return the difference from the model, see `relative_error`, for each shape of random images.

    sizes: (H, W) of the images, each in all batches. Raises ValueError if the file or the model cannot run on a batch.
    """
    generator = torch.Generator().manual_seed(0)
    errors = {}
    for height, width in sizes:
        for batch in batches:
            images = source.images(batch, height, width, generator)
            shape = f"{batch} x {height} x {width}"
            try:
                given = run(images)
                with torch.no_grad():
                    expected = as_list(source.model(images, **({"given": given} if source.needs_given else {})))
            except Exception as error:
                # Runtimes and models raise errors of many types.
                reason = shorten(one_line(error), 120)
                raise ValueError(f"{source.name} fails on {shape} ({reason}); use --img-size for one size.") from error
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
