"""Measure what holds on real pictures: python -m studies real PART --data ROOT

teacher     how exactly a real teacher was converted, and what its features tell
linearise   its students, without labels
fashion     pyramids on Fashion-MNIST, by configs/fashion_mnist
attentions  every attention type in a small ViT, which names the odd one among items of Fashion-MNIST
cells       pyramids fine-tuned on 2,000 photos of solar cells, with and without weights
pretrain    pyramids that first learn both without labels, and every attention type so
photo       one photograph through the teacher and a student, in turn
deploy      a pyramid of Fashion-MNIST in each runtime that is installed
bags        which pooling finds one item in a bag of features, and what a large bag costs

studies/real/data.py says what ROOT holds. Each run that ends is a file in studies/results/real, and a stopped command
continues where it stopped. The pages that show them are written by python -m docs.generate.
"""

import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from soft_vit.cli import ArgumentParser
from studies.real import runs
from studies.real.bags import BAG_RUNS, learn_bags
from studies.real.pretrain import PRETRAIN_RUNS, learn_masked
from studies.real.shown import EXPORTS, STUDENT, deploy, see_photo
from studies.real.students import STUDENTS, linearise, measure_teacher
from studies.real.training import ATTENTION_RUNS, CELL_RUNS, PYRAMID_RUNS, find_odd, finetune_cells, learn_fashion

PARTS: dict[str, tuple[Sequence[str], Callable[[str, Path], dict[str, Any]]]] = {
    "teacher": (("teacher",), measure_teacher),
    "linearise": (tuple(STUDENTS), linearise),
    "fashion": (PYRAMID_RUNS, learn_fashion),
    "attentions": (ATTENTION_RUNS, find_odd),
    "cells": (CELL_RUNS, finetune_cells),
    "pretrain": (tuple(PRETRAIN_RUNS), learn_masked),
    "photo": ((STUDENT,), see_photo),
    "deploy": (EXPORTS, deploy),
    "bags": (BAG_RUNS, learn_bags),
}


def main(argv: Sequence[str]) -> None:
    parser = ArgumentParser(__doc__, prog="python -m studies real")
    parser.add_argument("part", choices=tuple(PARTS), help="what to measure")
    parser.add_argument("--data", type=Path, required=True, metavar="ROOT", help="the folder of unpacked packages")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="runs (default: all)")
    parser.add_argument("--out", type=Path, default=runs.RESULTS, help="(default: studies/results/real)")
    args = parser.parse_args(argv)
    names, measure = PARTS[args.part]
    torch.set_num_threads(1)
    # An exception, so that the clock of a run notes its time when it is stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    for name in args.only or names:
        if name not in names:
            parser.error(f"--only must name runs of {', '.join(names)}, got {name}")
        if not (args.out / args.part / f"{name}.json").exists():
            command = shlex.join(["python", "-m", "studies", "real", args.part, "--data", "ROOT", "--only", name])
            with runs.cpu_clock(args.data / "runs" / args.part / name) as minutes:
                found = measure(name, args.data)
            runs.save(args.part, name, found | {"cpu_minutes": minutes()}, command, args.out)
            print(f"Written: {args.out / args.part / name}.json", flush=True)
