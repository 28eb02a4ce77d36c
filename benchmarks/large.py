"""Measure memory and time of a pass of one large image through the feature maps of timm models."""

import argparse
import json
import math
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import timm
import torch
from tqdm import tqdm

import soft_vit  # noqa: F401  registers its models with timm
from benchmarks.memory import unless_out_of_memory
from benchmarks.report import Report
from soft_vit.probe.cost import free_memory
from soft_vit.text_tables import markdown_table

MODELS = ("soft_tiny", "swin_tiny_patch4_window7_224", "pvt_v2_b1")
MEGAPIXELS = (1.0, 5.0, 20.0, 100.0)
# Arguments of models whose name does not tell that they take any size.
OPTIONS: dict[str, dict[str, Any]] = {"soft_tiny": {"max_bottleneck": (7, 7)}}
OPTIONS["swin_tiny_patch4_window7_224"] = {"strict_img_size": False}


def sides_of(megapixels: float) -> tuple[int, int]:
    """Return height and width of an image of 3 x 4, multiples of 32 pixels."""
    unit = math.sqrt(megapixels * 1e6 / 12) / 32
    return max(round(3 * unit), 1) * 32, max(round(4 * unit), 1) * 32


def measure_pass(name: str, height: int, width: int) -> dict[str, float | str]:
    """Return the CPU seconds of the first pass of an image, and the GB that this process has taken at most.

    Without seconds if memory runs out.
    """
    model = timm.create_model(name, features_only=True, **OPTIONS.get(name, {})).eval()
    with torch.no_grad():
        start = time.process_time()
        if unless_out_of_memory(lambda: model(torch.randn(1, 3, height, width))) is None:
            return {"reason": "memory"}
        seconds = time.process_time() - start
    return {"seconds": seconds, "gigabytes": peak_gigabytes()}


def peak_gigabytes() -> float:
    """Return the most memory that this process has taken, on Linux."""
    # The mark of `getrusage` begins with the size of the process that started this one.
    marks = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(marks["VmHWM"].split()[0]) * 1024 / 1e9


def measure_large(names: Sequence[str], megapixels: Sequence[float], *, max_seconds: int = 600) -> list[dict[str, Any]]:
    """Return a row for each model and size, measured in a process of its own with one thread.

    max_seconds: a process ends after so many seconds of CPU time.
    """
    rows = []
    for name, size in tqdm([(name, size) for name in names for size in megapixels], leave=False):
        height, width = sides_of(size)
        row = {"model": name, "megapixels": size, "height": height, "width": width, "seconds": "", "gigabytes": ""}
        command = [sys.executable, "-m", "benchmarks.large", name, height, width, max_seconds]
        done = subprocess.run([*map(str, command)], stdout=subprocess.PIPE, text=True)
        ends = {-signal.SIGXCPU: {"reason": "time"}, -signal.SIGKILL: {"reason": "memory"}}
        if done.returncode not in (0, *ends):
            raise ValueError(f"A pass of {name} must end well, got the exit code {done.returncode}.")
        rows.append({**row, "reason": "", **(ends.get(done.returncode) or json.loads(done.stdout))})
    return rows


def large_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a Markdown table of memory and time, a row for each model, from rows of a CSV file."""
    sizes = dict.fromkeys(float(row["megapixels"]) for row in rows)
    cells: dict[str, list[str]] = {}
    for row in rows:
        cell = {"memory": "too much memory", "time": "too slow"}.get(row["reason"])
        cell = cell or f"{float(row['gigabytes']):.2f} GB, {float(row['seconds']):.3g} s"
        cells.setdefault(row["model"], []).append(cell)
    header = ["backbone", *(f"{size:g} MP" for size in sizes)]
    return markdown_table(header, [[name, *of_name] for name, of_name in cells.items()])


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL", help="(default: three)")
    parser.add_argument("--megapixels", nargs="+", type=float, default=MEGAPIXELS, help="(default: 1 5 20 100)")
    parser.add_argument("--max-seconds", type=int, default=600, help="of CPU time (default: %(default)s)")


def run(args: argparse.Namespace) -> Report:
    rows = measure_large(args.models, args.megapixels, max_seconds=args.max_seconds)
    words = "one image of 3 x 4 in float32, without gradients, feature maps of all stages, one thread. CPU seconds of "
    words += "the first pass of a process, and all memory of that process. Passes that take more than the memory that "
    words += f"is free, or more than {args.max_seconds} CPU seconds, are ended."
    return Report("Large images", words, [large_table(rows)], rows, {})


if __name__ == "__main__":
    torch.set_num_threads(1)
    # Beyond it, an allocation fails, and the system ends no other process.
    resource.setrlimit(resource.RLIMIT_DATA, (free_memory(), resource.RLIM_INFINITY))
    seconds = int(sys.argv[4])
    # The second limit would end the process by another signal.
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 9))
    print(json.dumps(measure_pass(sys.argv[1], *map(int, sys.argv[2:4]))))
