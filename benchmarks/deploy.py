"""Measure images per second of timm models in eager mode and, in turn with it, in the runtimes of exported files."""

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.registry import create_variant
from benchmarks.report import Report
from benchmarks.timer import Timing, measure
from soft_vit.cli import add_img_size_option
from soft_vit.text_tables import markdown_table

MODELS = ("soft_tiny", "soft_plus_tiny", "mlla_tiny", "pvt_v2_b1", "swin_tiny_patch4_window7_224")
PACKAGES = {"onnx": "onnxruntime", "openvino": "openvino", "executorch": "executorch", "litert": "litert_torch"}
"""Formats whose runtimes are measured, and a package of each."""


def measure_deploy(
    names: Sequence[str], formats: Sequence[str], batch_size: int, img_size: tuple[int, int], rounds: int
) -> tuple[list[Timing], Mapping[tuple[str, str], float]]:
    """Time timm models by name, with variants, in eager mode and by a file of each format, all in turn.

    A file of one image runs once for each image of a batch. The mode of a timing is `eager` or the format. Also return
    the error of each file, see `relative_error`, by model and format. Raises ValueError for an unknown model, or one
    that a format cannot hold.
    """
    # The other commands run without the packages of export and training.
    from soft_vit.export import FORMATS, ExportModel
    from soft_vit.export.verified_file import compare

    steps: dict[tuple[str, str], Callable[[], Any]] = {}
    errors = {}
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        for name in names:
            model = create_variant(name, img_size).eval().requires_grad_(False)
            source = ExportModel(name, model, (3, *img_size), (0.5,) * 3, (0.25,) * 3)
            images = source.images(batch_size, *img_size)
            steps[name, "eager"] = partial(model, images)
            for format in formats:
                suffix, write, open_file, any_batch = FORMATS[format]
                path = Path(folder) / f"{name}_{format}{suffix}"
                with torch.inference_mode(False):
                    write(source, path)
                run, size = open_file(path), batch_size if any_batch else 1
                (errors[name, format],) = compare(run, source, [img_size], [size]).values()
                steps[name, format] = partial(_run, run, images.split(size))
        found = measure(steps, "inference", batch_size, rounds, "cpu")
    return [Timing(*each.target, each.size, each.seconds) for each in found], errors


def _run(run: Callable[[Tensor], Any], parts: Sequence[Tensor]) -> None:
    for images in parts:
        run(images)


def rates_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a Markdown table of images per second, a row for each model, from rows of a CSV file."""
    modes = list(dict.fromkeys(row["runtime"] for row in rows))
    rates = {(row["model"], row["runtime"]): f"{float(row['median']):.3g}" for row in rows}
    names = dict.fromkeys(row["model"] for row in rows)
    return markdown_table(["model", *modes], [[name, *(rates[name, mode] for mode in modes)] for name in names])


def add_options(parser: argparse.ArgumentParser) -> None:
    installed = [format for format, package in PACKAGES.items() if find_spec(package)]
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="MODEL", help="(default: five)")
    parser.add_argument("--formats", nargs="*", choices=PACKAGES, default=installed, help="(default: all installed)")
    parser.add_argument("--batch-size", type=int, default=4, help="(default: %(default)s)")
    add_img_size_option(parser, default=(224, 224))
    parser.add_argument("--rounds", type=int, default=10, help="(default: %(default)s)")


def run(args: argparse.Namespace) -> Report:
    if args.device != "cpu":
        raise ValueError(f"device must be cpu, where the runtimes are measured, got {args.device}.")
    timings, errors = measure_deploy(args.models, args.formats, args.batch_size, args.img_size, args.rounds)
    rows, cells = [], []
    for each in timings:
        error = errors.get((each.target, each.mode))
        rows.append({"model": each.target, "runtime": each.mode, "batch_size": each.size, **each.rate._asdict()})
        cells.append([each.target, each.mode, *each.rate.cells(".1f"), "" if error is None else f"{error:.1e}"])
    tables = [rates_table(rows), markdown_table(["model", "runtime", "images / s", "quartiles", "error"], cells)]
    size = f"{args.img_size[0]} x {args.img_size[1]}"
    words = f"{size}, batch {args.batch_size}, float32. Medians and quartiles over rounds, in which all take turns; "
    words += "each runs twice, and the second time counts. executorch and litert take one image at a time. error: the "
    words += "largest difference from eager, relative to the largest output. --threads counts for eager alone."
    return Report("Speed in runtimes", words, tables, rows, {"case": size})
