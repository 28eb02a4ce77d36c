"""Measure images per second of timm models in eager mode, compiled, and in the runtimes of exported files."""

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.published import published
from benchmarks.registry import create_variant
from benchmarks.report import Report
from benchmarks.timer import Timing, time_in_turn
from soft_vit.cli import add_img_size_option
from soft_vit.text_tables import markdown_table

if TYPE_CHECKING:
    # The other commands run without the packages of export and training.
    from soft_vit.export import ExportModel
    from soft_vit.export.formats import Run

AROUND_79 = ("pvt_v2_b1", "efficientvit_b1", "deit_small_patch16_224", "care_s0", "care_s1", "inline_pvt_tiny")
AROUND_79 += ("soft_tiny+capped", "soft_plus_tiny")
AROUND_82 = ("swin_tiny_patch4_window7_224", "care_s2", "wfm_small", "soft_norm_small+capped", "inline_swin_tiny")
AROUND_82 += ("vssd_micro", "ravlt_t", "mlla_tiny")
GROUPS = AROUND_79, AROUND_82
"""Models of comparable accuracy, in percent. All at once would take too much memory for large images."""
PACKAGES = {"eager": "torch", "compiled": "torch", "onnx": "onnxruntime", "onnx_int8": "onnxruntime"}
PACKAGES |= {"openvino": "openvino", "openvino_int8": "nncf", "executorch": "executorch", "litert": "litert_torch"}
"""Runtimes, formats with `_int8` for 8 bits among them, and a package of each."""
CALIBRATION_IMAGES = 1
"""Of files in int8, whose speed alone is measured; large ones take much memory."""


def run_in(runtime: str, source: "ExportModel", folder: Path) -> "Run":
    """Return a model as a function in a runtime, whose file is written in a folder if it is not there."""
    from soft_vit.export import FORMATS
    from soft_vit.export.formats import as_list
    from soft_vit.export.quantization import QUANTIZERS

    if runtime in ("eager", "compiled"):
        model = torch.compile(source.model, dynamic=False) if runtime == "compiled" else source.model
        return lambda images: as_list(model(images))
    format, int8, _ = runtime.partition("_int8")
    suffix, write, open_file, _ = FORMATS[format]
    # A folder that a stopped command left unfinished has another name.
    full, made = (folder / "{}_{}x{}_{}".format(source.name, *source.input_size[1:], x) for x in (format, runtime))
    if not made.exists():
        part = made.with_name(f"{made.name}.part")
        part.mkdir(parents=True, exist_ok=True)
        if int8:
            run_in(format, source, folder)
            QUANTIZERS[format](full / f"model{suffix}", part / f"model{suffix}", source, count=CALIBRATION_IMAGES)
        else:
            write(source, part / f"model{suffix}")
        part.rename(made)
    return open_file(made / f"model{suffix}")


def measure_deploy(
    groups: Sequence[Sequence[str]], runtimes: Sequence[str], img_size: tuple[int, int], rounds: int, folder: Path
) -> list[Timing]:
    """Time one image of timm models by name, with variants, those of a group in turn in each runtime, see `run_in`.

    The mode of a timing is the runtime. Raises ValueError for an unknown model, or one that a format cannot hold.
    """
    from soft_vit.export import ExportModel

    timings = []
    for runtime, names in product(runtimes, groups):
        steps = {}
        for name in names:
            model = create_variant(name, img_size).eval().requires_grad_(False)
            source = ExportModel(name, model, (3, *img_size), (0.5,) * 3, (0.25,) * 3)
            steps[name] = partial(run_in(runtime, source, folder), source.images(1, *img_size))
        with torch.inference_mode():
            found = time_in_turn(steps, rounds, "cpu", desc=runtime)
        timings += [Timing(name, runtime, 1, seconds) for name, seconds in found.items()]
    return timings


def rates_table(rows: Sequence[Mapping[str, Any]], size: str) -> str:
    """Return a Markdown table of images per second, a row for each model by published accuracy, from rows of CSV."""
    modes = list(dict.fromkeys(row["runtime"] for row in rows))
    rates = {(row["model"], row["runtime"]): f"{float(row['median']):.3g}" for row in rows}
    known = {name: each.top1 for name, each in published().items()}
    accuracy = {row["model"]: known.get(row["model"].partition("+")[0], 0) for row in rows}
    names = sorted(accuracy, key=accuracy.__getitem__)
    cells = [[name, accuracy[name] or "", *(rates.get((name, mode), "") for mode in modes)] for name in names]
    return markdown_table([size, "published top-1 %", *modes], cells)


def add_options(parser: argparse.ArgumentParser) -> None:
    installed = [runtime for runtime, package in PACKAGES.items() if find_spec(package)]
    parser.add_argument("models", nargs="*", metavar="MODEL", help="(default: sixteen)")
    parser.add_argument("--runtimes", nargs="+", choices=PACKAGES, default=installed, help="(default: all installed)")
    parser.add_argument("--files", type=Path, metavar="FOLDER", help="keeps the files for the next command")
    add_img_size_option(parser, default=(224, 224))
    parser.add_argument("--rounds", type=int, default=10, help="(default: %(default)s)")


def run(args: argparse.Namespace) -> Report:
    if args.device != "cpu":
        raise ValueError(f"device must be cpu, where the runtimes are measured, got {args.device}.")
    with tempfile.TemporaryDirectory() as folder:
        how = [args.models] if args.models else GROUPS, args.runtimes, args.img_size, args.rounds
        timings = measure_deploy(*how, args.files or Path(folder))
    rows = [{"model": each.target, "runtime": each.mode, **each.rate._asdict()} for each in timings]
    cells = [[each.target, each.mode, *each.rate.cells(".2f")] for each in timings]
    size = f"{args.img_size[0]} x {args.img_size[1]}"
    tables = [rates_table(rows, size), markdown_table(["model", "runtime", "images / s", "quartiles"], cells)]
    words = f"{size}, one image, float32 or int8, random weights. Medians and quartiles over rounds, in which "
    words += "models of comparable accuracy take turns. --threads counts for torch alone."
    return Report("Speed in runtimes", words, tables, rows, {"case": size})
