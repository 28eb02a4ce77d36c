"""Check a table of the atlas, or of its models, before it is submitted; exit code 1 if it has mistakes."""

import argparse
import math
import re
from collections import Counter
from pathlib import Path

from benchmarks.atlas.table import (
    ENCODING,
    STEADY,
    UNSTABLE,
    case_of,
    format_of,
    parse,
    spreads_of,
    steadiness,
)
from benchmarks.timer import MODES
from soft_vit.layers import ATTENTIONS

NAME = r"(atlas|models_infer|models_train)-fp32-pt\d+-(cpu|gpu)-[a-z0-9_]+\.csv"
EXAMPLE = "atlas-fp32-pt2110-cpu-ryzen_9950x.csv"


def mistakes_in(path: Path) -> list[str]:
    """Return a sentence for each mistake in a file. Raises FileNotFoundError."""
    try:
        text = path.read_text(encoding=ENCODING)
    except UnicodeDecodeError:
        return [f"{path.name} must be CSV in UTF-8."]
    named = re.fullmatch(NAME, path.name)
    if not named:
        return [f"The file's name must be such as {EXAMPLE}, with models_infer or models_train for models."]
    _, rows, mistakes = parse(text, format_of(path))
    cases = Counter(" ".join(map(str, case_of(row))) for row in rows)
    mistakes += [f"There must be one row of {case}, got {count}." for case, count in cases.items() if count > 1]
    # Figures in a file have four digits.
    mistakes += [
        f"{' '.join(map(str, case_of(row)))} must have the note {UNSTABLE}: its quartiles are {STEADY:.0%} of "
        "the median apart, or more."
        for row in rows
        if not row.note and steadiness(spreads_of(row)[0], slack=1e-3)
    ]
    if named[1] == "atlas":
        kinds, modes, tokens = ({getattr(row, name) for row in rows} for name in ("kind", "mode", "tokens"))
        mistakes += [f"kind must be one of soft_vit.layers.ATTENTIONS, got {kind}." for kind in kinds - {*ATTENTIONS}]
        mistakes += [f"mode must be {' or '.join(MODES)}, got {mode}." for mode in modes - {*MODES}]
        mistakes += [f"tokens must fill a square map, got {n}." for n in tokens if math.isqrt(n) ** 2 != n]
    return mistakes


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="a CSV file")


def run(args: argparse.Namespace) -> None:
    mistakes = mistakes_in(args.file)
    print("\n".join(mistakes) or f"{args.file} can be submitted.")
    if mistakes:
        raise SystemExit(1)
