"""The page and the table of a report, and whether its aims are reached."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.gpu.outcome import DONE, Outcome
from benchmarks.gpu.parts import EAGER, FUSED, GRAPH, SOFTMAX, Part, Sizes
from benchmarks.models import MODES, models_table
from benchmarks.operator import PASSES
from benchmarks.timer import Timing
from soft_vit.text_tables import markdown_table

# The shortest length of the aims, a map of 56 x 56 tokens.
MIN_TOKENS = 3136


class Call(NamedTuple):
    """Median seconds of a call of the operator; of_floor: the least time, `compulsory_bytes` at the speed of a copy,
    as a part of it."""

    seconds: float
    of_floor: float


Calls = dict[tuple[str, str, int], Call]

# What the fused form should reach at every length from `MIN_TOKENS` on: times as fast as another form, or percent of the
# floor. In words, the least number, the other form, and the pass.
AIMS = (
    ("at least 8 times as fast as eager, forward", 8, EAGER, "forward"),
    ("60 % of the bandwidth floor, forward", 60, None, "forward"),
    ("60 % of the bandwidth floor, forward + backward", 60, None, "forward+backward"),
    ("faster than fused softmax attention, forward + backward", 1, SOFTMAX, "forward+backward"),
)


def compulsory_bytes(form: str, direction: str, tensor: int) -> int:
    """Return the bytes of all tensors of N tokens, each read or written once; tensor: the bytes of one.

    Forward reads q and v (and k, which in softmax-free attention is q), and writes x. Between the passes dx is written.
    Backward reads the inputs and dx, and writes gradients of the inputs.
    """
    inputs = 3 if form in (SOFTMAX, "linear") else 2
    return tensor * (inputs + 1 if direction == "forward" else 3 * inputs + 3)


def bandwidth(timings: Iterable[Timing]) -> float | None:
    """Return the bytes per second that a copy read and wrote; None where it was not timed."""
    return next((2 * t.size / t.time.median for t in timings if t.target == "copy"), None)


def operator_calls(outcomes: Iterable[Outcome], sizes: Sizes) -> Calls:
    """Return calls of the operator by form, direction and length, without those that ran out of memory."""
    calls = {}
    # In bf16.
    token = 2 * sizes.inputs["batch_size"] * sizes.inputs["num_heads"] * sizes.inputs["head_dim"]
    for outcome in outcomes:
        speed = bandwidth(outcome.timings)
        for t in outcome.timings:
            if t.mode in PASSES and t.time:
                floor = compulsory_bytes(t.target, t.mode, token * t.size) / speed
                calls[t.target, t.mode, t.size] = Call(t.time.median, floor / t.time.median)
    return calls


def aims_table(calls: Calls, planned: Sequence[int]) -> str:
    """Return each aim, whether it is reached at every planned length from `MIN_TOKENS` on, and the number at each."""
    rows = []
    for words, least, base, direction in AIMS:
        found: dict[int, float | None] = {}
        for n in sorted(n for n in {*planned, *(key[2] for key in calls)} if n >= MIN_TOKENS):
            fused, other = (calls.get((form, direction, n)) for form in (FUSED, base or FUSED))
            ratio = 100 * fused.of_floor if fused and not base else fused and other and other.seconds / fused.seconds
            found[n] = ratio
        unit = "times" if base else "%"
        cells = [f"{n}: " + ("not measured" if x is None else f"{x:.3g} {unit}") for n, x in found.items()]
        rows.append([words, verdict(list(found.values()), least), "; ".join(cells)])
    return markdown_table(["aim", f"from N = {MIN_TOKENS} on", "at each N"], rows)


def verdict(numbers: Sequence[float | None], least: float) -> str:
    """Return whether an aim is reached with these numbers, None where one is not known."""
    known = [number for number in numbers if number is not None]
    if not known:
        return "not measured"
    if min(known) < least:
        return "missed"
    return "reached" if len(known) == len(numbers) else "reached where measured"


def parts_table(parts: Sequence[Part], outcomes: Mapping[str, Outcome]) -> str:
    """Return how each part ended."""
    rows = []
    for part in parts:
        outcome = outcomes.get(part.name)
        cells = ["not begun", "", ""]
        if outcome is not None:
            cells = [outcome.state, f"{outcome.seconds:.0f}", outcome.last.replace("|", "/")]
        rows.append([part.name, *cells])
    return markdown_table(["part", "state", "seconds", "last line"], rows)


def operator_table(timings: Sequence[Timing], calls: Calls) -> str:
    """Return time and memory of each form, and how many times as fast it is as eager and as softmax attention."""
    rows = []
    operators = [t for t in timings if t.mode in PASSES]
    for t in sorted(operators, key=lambda t: (t.size, PASSES.index(t.mode), t.target == GRAPH)):
        cells = ["out of memory", *[""] * 5]
        if t.time:
            bases = [calls.get((form, t.mode, t.size)) for form in (EAGER, SOFTMAX)]
            ratios = ["" if base is None else f"{base.seconds / t.time.median:.2f}" for base in bases]
            middle, lower, upper = (1e3 * seconds for seconds in t.time)
            floor = f"{100 * calls[t.target, t.mode, t.size].of_floor:.0f}"
            memory = "" if t.megabytes is None else f"{t.megabytes:.0f}"
            cells = [f"{middle:.3g}", f"{lower:.3g} - {upper:.3g}", *ratios, floor, memory]
        rows.append([t.size, t.mode, t.target, *cells])
    columns = ["N", "pass", "form", "ms", "quartiles", "times eager", "times softmax", "% of floor", "memory (MB)"]
    return markdown_table(columns, rows)


def csv_rows(timings: Sequence[Timing], calls: Calls) -> list[dict[str, Any]]:
    """Return every figure, unrounded; size: tokens, images of a batch, or bytes of a copy."""
    rows = []
    for t in timings:
        seconds = dict(zip(("seconds", "lower", "upper"), t.time or (None,) * 3, strict=True))
        call = calls.get((t.target, t.mode, t.size))
        more = {"memory_mb": t.megabytes, "of_floor": call and call.of_floor}
        rows.append({"target": t.target, "mode": t.mode, "size": t.size, **seconds, **more})
    return rows


def page(head: str, command: str, parts: Sequence[Part], outcomes: Mapping[str, Outcome], sizes: Sizes) -> str:
    """Return the whole report in Markdown."""
    timings = [timing for outcome in outcomes.values() for timing in outcome.timings]
    calls = operator_calls(outcomes.values(), sizes)
    copies = [f"{speed / 1e9:.3g}" for outcome in outcomes.values() if (speed := bandwidth(outcome.timings))]
    words = dict(batch_size="B", num_heads="H", head_dim="D", num_bottleneck="M")
    case = ", ".join(f"{letter} = {sizes.inputs[name]}" for name, letter in words.items())
    blocks = [
        "# GPU report",
        head,
        f"Made by `{command}`; the same command runs what is not done.",
        "## Aims",
        aims_table(calls, sizes.tokens),
        "## Parts",
        parts_table(parts, outcomes),
        "## The operator",
        f"{case}, bf16. Medians over {sizes.rounds} rounds, with a call of every form in turn. The floor is "
        "the time in which a copy moves the tensors of N tokens, inputs, results and gradients, each once. A copy in "
        f"memory moves {', '.join(copies) or 'not measured'} GB/s, read and written. Memory is the peak beyond the "
        "inputs. Bottleneck tokens are given, and their sampling is not timed.",
        operator_table(timings, calls),
        "## Models",
        f"{sizes.img_size} x {sizes.img_size} pixels, bf16 autocast. Training is forward, cross-entropy and backward.",
        models_table(sorted((t for t in timings if t.mode in MODES), key=lambda t: t.mode), memory=True),
    ]
    for part in parts:
        outcome = outcomes.get(part.name)
        if outcome is not None and outcome.state != DONE:
            blocks += [f"## {part.name}: {outcome.state}", f"~~~\n{outcome.tail}\n~~~"]
    return "\n\n".join(blocks) + "\n"
