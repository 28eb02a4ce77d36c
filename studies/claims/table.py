"""The table of claims: statements, checks and findings."""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from inspect import cleandoc
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

from benchmarks.timer import time_in_turn
from soft_vit.text_tables import markdown_table

Verdict = Literal["holds", "holds in part", "does not hold here", "not tested"]


class Finding(NamedTuple):
    """The result of a check: a verdict and its figures in a few sentences."""

    verdict: Verdict
    found: str


class Claim(NamedTuple):
    """A claim, its source, and the function that checks it."""

    text: str
    source: str
    check: Callable[[], Finding]


Entry = dict[str, Any]
"""A finding with its cpu_seconds, date and machine."""

CLAIMS: dict[int, Claim] = {}
"""The claims by number. `claim` adds to it."""


def claim(number: int, source: str) -> Callable[[Callable[[], Finding]], Callable[[], Finding]]:
    """Decorate the check of a claim, the first paragraph of its docstring, and add the claim to `CLAIMS`."""

    def enter(check: Callable[[], Finding]) -> Callable[[], Finding]:
        text = cleandoc(check.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
        CLAIMS[number] = Claim(text, source, check)
        return check

    return enter


def load_entries(path: Path) -> dict[int, Entry]:
    """Return the entries of a JSON file by number, or an empty dictionary if it is missing."""
    entries = json.loads(path.read_text()) if path.exists() else {}
    return {int(number): entry for number, entry in entries.items()}


def claims_table(entries: Mapping[int, Entry]) -> str:
    """Return a Markdown table with a row for each claim that has an entry."""
    header = ["#", "claim", "source", "what came out", "verdict", "CPU s"]
    rows = []
    for number, entry in sorted(entries.items()):
        claim, cost = CLAIMS[number], f"{entry['cpu_seconds']:g}"
        rows.append([number, claim.text, claim.source, entry["found"], f"**{entry['verdict']}**", cost])
    return markdown_table(header, rows)


def seconds(work: Mapping[str, Callable[[], object]], rounds: int = 5) -> dict[str, float]:
    """Return median CPU seconds of each piece of work, called in turn after a warm-up."""

    def clock(call: Callable[[], object], *_: object) -> float:
        began = time.process_time()
        call()
        return time.process_time() - began

    return {name: median(times) for name, times in time_in_turn(work, rounds, "cpu", clock=clock).items()}


def verdict(holds: bool, in_part: bool = False) -> Verdict:
    """Return the verdict on a claim that holds, or else may hold in part."""
    return "holds" if holds else "holds in part" if in_part else "does not hold here"


def named(values: Mapping[str, object], form: str = "", unit: str = "") -> str:
    """Return `name value` pairs as text, with values in a format and with a unit."""
    return ", ".join(f"{name} {value:{form}}{unit}" for name, value in values.items())


def share(flags: Iterable[bool]) -> Verdict:
    """Return the verdict on a claim with several parts, from whether each part holds."""
    flags = list(flags)
    return verdict(all(flags), any(flags))
