"""Check a table of the atlas before it is submitted; exit code 1 if it has a mistake."""

import argparse
import math
import re
from collections import Counter
from pathlib import Path

from benchmarks.atlas.table import STEADY, UNSTABLE, case_of, read_table, spreads_of, steadiness
from benchmarks.timer import MODES
from soft_vit.layers import attention_class

NAME = r"atlas-fp32-pt\d+-(cpu|gpu)-[a-z0-9_]+\.csv"
EXAMPLE = "atlas-fp32-pt2110-cpu-ryzen_9950x.csv"


def check(path: Path) -> None:
    """Raise ValueError for the first mistake in a file, and FileNotFoundError without it."""
    if not re.fullmatch(NAME, path.name):
        raise ValueError(f"FILE must be named such as {EXAMPLE}, got {path.name}.")
    rows = read_table(path).rows
    cases = Counter(map(case_of, rows))
    for row in rows:
        case = " ".join(map(str, case_of(row)))
        if cases[case_of(row)] > 1:
            raise ValueError(f"There must be one row of {case}, got {cases[case_of(row)]}.")
        if row.seconds is None and not row.note:
            raise ValueError(f"{case} must have a note that explains the missing figures.")
        for median, lower, upper in spreads_of(row):
            if median is not None and not 0 < lower <= median <= upper < math.inf:
                raise ValueError(f"{case} must have a median between quartiles, got {median} for {lower} to {upper}.")
        # Figures in a file have four digits.
        if not row.note and steadiness(spreads_of(row)[0], slack=1e-3):
            raise ValueError(f"{case} must have the note {UNSTABLE}: its quartiles are {STEADY:.0%} apart, or more.")
        if row.mode not in MODES:
            raise ValueError(f"mode must be {' or '.join(MODES)}, got {row.mode}.")
        attention_class(row.kind)
        if math.isqrt(row.tokens) ** 2 != row.tokens:
            raise ValueError(f"tokens must fill a square map, got {row.tokens}.")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="a CSV file")


def run(args: argparse.Namespace) -> None:
    check(args.file)
    print(f"{args.file} can be submitted.")
