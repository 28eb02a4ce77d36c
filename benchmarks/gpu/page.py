"""The page and the table of a report, and what became of its aims."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from benchmarks.gpu.parts import EAGER, FUSED, GRAPH, SOFTMAX, Figure, Part, Sizes
from benchmarks.gpu.run import DONE, Outcome
from soft_vit.text_tables import markdown_table

# The shortest length of the aims, a map of 56 x 56 tokens.
LEAST_TOKENS = 3136

Times = dict[tuple[str, str, int], Figure]


class Aim(NamedTuple):
    """A number that the operator should reach at every length from `LEAST_TOKENS` on."""

    words: str
    least: float
    unit: str
    number: Callable[[Times, int], float]


def times_faster(form: str, than: str, direction: str) -> Callable[[Times, int], float]:
    """How many times as fast a form is as another, as `Aim.number`."""
    return lambda times, n: times[than, direction, n].median / times[form, direction, n].median


AIMS = (
    Aim("at least 8 times as fast as eager, forward", 8, "times", times_faster(FUSED, EAGER, "forward")),
    Aim("60 % of the bandwidth floor, forward", 60, "%", lambda times, n: 100 * times[FUSED, "forward", n].of_floor),
    Aim(
        "60 % of the bandwidth floor, forward + backward",
        60,
        "%",
        lambda times, n: 100 * times[FUSED, "forward+backward", n].of_floor,
    ),
    Aim(
        "faster than fused softmax attention, forward + backward",
        1,
        "times",
        times_faster(FUSED, SOFTMAX, "forward+backward"),
    ),
)


def operator_times(figures: Sequence[Figure]) -> Times:
    """The operator's figures by form, direction and length, without those for which memory was short."""
    return {(f.form, f.direction, f.size): f for f in figures if f.what == "operator" and f.median is not None}


def aims_table(figures: Sequence[Figure], planned: Sequence[int]) -> str:
    """Each aim, whether it is reached at every planned length from `LEAST_TOKENS` on, and the number at each."""
    times = operator_times(figures)
    lengths = sorted(n for n in {*planned, *(f.size for f in figures if f.what == "operator")} if n >= LEAST_TOKENS)
    rows = []
    for aim in AIMS:
        found = {}
        for n in lengths:
            try:
                found[n] = aim.number(times, n)
            except KeyError:
                found[n] = None
        cells = [f"{n}: " + ("not measured" if x is None else f"{x:.3g} {aim.unit}") for n, x in found.items()]
        rows.append([aim.words, verdict(list(found.values()), aim.least), "; ".join(cells)])
    return markdown_table(["aim", f"from N = {LEAST_TOKENS} on", "at each N"], rows)


def verdict(numbers: Sequence[float | None], least: float) -> str:
    """What became of an aim with these numbers, None where one is not known."""
    known = [number for number in numbers if number is not None]
    if not known:
        return "not measured"
    if min(known) < least:
        return "missed"
    return "reached" if len(known) == len(numbers) else "reached where measured"


def parts_table(parts: Sequence[Part], outcomes: Mapping[str, Outcome]) -> str:
    """How each part ended."""
    rows = []
    for part in parts:
        outcome = outcomes.get(part.name)
        cells = ["not begun", "", ""]
        if outcome is not None:
            cells = [outcome.state, f"{outcome.seconds:.0f}", outcome.last.replace("|", "/")]
        rows.append([part.name, *cells])
    return markdown_table(["part", "state", "seconds", "last line"], rows)


def operator_table(figures: Sequence[Figure]) -> str:
    """Time and memory of each form, and how many times as fast it is as eager and as softmax attention."""
    times = operator_times(figures)
    rows = []
    order = {"forward": 0, "forward+backward": 1}
    operators = [f for f in figures if f.what == "operator"]
    for f in sorted(operators, key=lambda f: (f.size, order[f.direction], f.form == GRAPH)):
        cells = [f.size, f.direction, f.form]
        if f.median is None:
            rows.append([*cells, "out of memory", *[""] * 5])
            continue
        ratios = []
        for other in (EAGER, SOFTMAX):
            known = times.get((other, f.direction, f.size))
            ratios.append("" if known is None else f"{known.median / f.median:.2f}")
        memory = "" if f.memory_mb is None else f"{f.memory_mb:.0f}"
        quartiles = f"{f.lower:.3g} - {f.upper:.3g}"
        rows.append([*cells, f"{f.median:.3g}", quartiles, *ratios, f"{100 * f.of_floor:.0f}", memory])
    columns = ["N", "pass", "form", "ms", "quartiles", "times eager", "times softmax", "% of floor", "memory (MB)"]
    return markdown_table(columns, rows)


def models_table(figures: Sequence[Figure]) -> str:
    """Images per second of each model."""
    rows = []
    for f in sorted((f for f in figures if f.what == "model"), key=lambda f: (f.direction, f.form)):
        if f.median is None:
            rows.append([f.direction, f.form, f.size, "out of memory", "", ""])
            continue
        memory = "" if f.memory_mb is None else f"{f.memory_mb:.0f}"
        rows.append([f.direction, f.form, f.size, f"{f.median:.0f}", f"{f.lower:.0f} - {f.upper:.0f}", memory])
    return markdown_table(["mode", "model", "batch", "images / s", "quartiles", "memory (MB)"], rows)


def page(head: str, command: str, parts: Sequence[Part], outcomes: Mapping[str, Outcome], sizes: Sizes) -> str:
    """The whole report in Markdown."""
    figures = [figure for outcome in outcomes.values() for figure in outcome.figures]
    copies = [f"{f.median:.3g}" for f in figures if f.what == "copy" and f.median is not None]
    case = f"B = {sizes.batch_size}, H = {sizes.num_heads}, D = {sizes.head_dim}, M = {sizes.num_bottleneck}, bf16"
    blocks = [
        "# GPU report",
        head,
        f"Made by `{command}`; the same command runs what is not done.",
        "## Aims",
        aims_table(figures, sizes.tokens),
        "## Parts",
        parts_table(parts, outcomes),
        "## The operator",
        f"{case}. Medians over {sizes.rounds} rounds, in each of which every form is called in turn. The floor is the "
        "time in which a copy moves the tensors of N tokens, inputs, results and gradients, each once. A copy in "
        f"memory moves {', '.join(copies) or 'not measured'} GB/s, read and written. Memory is the peak beyond the "
        "inputs. Bottleneck tokens are given, and their sampling is not timed.",
        operator_table(figures),
        "## Models",
        f"{sizes.img_size} x {sizes.img_size} pixels, bf16 autocast. Training is forward, cross-entropy and backward.",
        models_table(figures),
    ]
    for part in parts:
        outcome = outcomes.get(part.name)
        if outcome is not None and outcome.state != DONE:
            blocks += [f"## {part.name}: {outcome.state}", f"~~~\n{outcome.tail}\n~~~"]
    return "\n\n".join(blocks) + "\n"
