"""A page with a section per attention: its docstring, the inputs that it takes, and its measurements."""

import inspect
import itertools
import math
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from benchmarks.atlas.crossover import QUANTITIES, Crossing, crossing_cell, crossings
from benchmarks.atlas.groups import measured_with
from benchmarks.atlas.table import UNSTABLE, Table, read_table
from docs.generate.docstrings import docstring_markdown
from docs.generate.masks import kind_row
from soft_vit.layers import ATTENTIONS, attention_options
from soft_vit.layers.choice import FIXED_TOKENS, MIXES_ALL, SHIPPED, choose_attention, shipped_table
from soft_vit.text_tables import csv_table, markdown_table
from studies.gym import TASKS
from studies.gym.report import Score, read_cells, scores

HEAD_DIM = 32


def gym_scores(path: Path) -> dict[str, dict[str, Score]]:
    """Return scores by attention and task, from a table of the gym's runs."""
    found: dict[str, dict[str, Score]] = defaultdict(dict)
    for (task, kind), score in scores(read_cells(path.read_text())).items():
        found[kind][task] = score
    return found


def gym_means(path: Path) -> str:
    """Return the table of `soft_vit.layers.choice.gym_scores` as CSV, of attentions tested in five or more tasks.

    Scores are means over the tasks that all of them have.
    """
    found = {kind: of_kind for kind, of_kind in gym_scores(path).items() if len(of_kind) >= 5}
    tasks = set.intersection(*(set(of_kind) for of_kind in found.values()))
    means = {kind: statistics.mean(of_kind[task].mean for task in tasks) for kind, of_kind in found.items()}
    return csv_table(["kind", "score"], [[kind, f"{100 * mean:.1f}"] for kind, mean in means.items()])


def choices_table() -> str:
    """Return a Markdown table of what `choose_attention` recommends by number of tokens, and of the fastest type."""
    rows, measured = [], MIXES_ALL & {kind for kind, *_ in shipped_table().figures}
    atlas = [row for row in read_table(SHIPPED).rows if row.head_dim == HEAD_DIM]
    stars = {(row.kind, row.mode, row.tokens): "*" for row in atlas if row.note == UNSTABLE}
    for tokens, mode in itertools.product((196, 784, 3136, 12544, 50176), ("inference", "training")):
        side, cells = math.isqrt(tokens), []
        for kinds in (None, measured):
            kind, _, seconds, *_, score, _ = choose_attention(tokens, training=mode == "training", kinds=kinds)
            star = stars.get((kind, mode, tokens), "")
            cells.append(f"`{kind}`, {float(f'{1e3 * seconds:.2g}'):g}{star} ms, {score:.0f} %")
        rows.append([f"{tokens:,}", f"{16 * side} x {16 * side}", f"{4 * side} x {4 * side}", mode, *cells])
    return markdown_table(["tokens", "image, ViT / 16", "image, pyramid", "pass", "recommended", "fastest"], rows)


def kinds_page(gym: Path, atlas: Table) -> str:
    """Return the tables and sections in Markdown, from a CSV file of the gym's runs and a table of the atlas."""
    learned, found = gym_scores(gym), crossings(atlas.rows, HEAD_DIM)
    rows = []
    for kind, cls in ATTENTIONS.items():
        means = [f"{100 * learned[kind][task].mean:.1f}" if task in learned[kind] else "" for task in TASKS]
        wins = [crossing_cell(found[kind, what]) if (kind, what) in found else "" for what in QUANTITIES]
        rows.append([f"[`{kind}`](#{kind})", f"`{cls.traits.cost}`", *means, *wins])
    overview = markdown_table(["kind", "cost", *TASKS, *(f"N, {what}" for what in QUANTITIES)], rows)
    sections = [_section(kind, learned[kind], found) for kind in ATTENTIONS]
    how = f"Measured for heads of {HEAD_DIM} channels ([the atlas](atlas.md)): {measured_with()}"
    return "\n".join([f"{how}. {atlas.date}; {atlas.machine}.\n", overview, "", *sections])


def _section(kind: str, learned: Mapping[str, Score], found: Mapping[tuple[str, str], Crossing]) -> str:
    cls = ATTENTIONS[kind]
    module = sys.modules[cls.__module__]
    source = f"../{module.__name__.replace('.', '/')}.py"
    _, sequences, maps, prefix, mask, causal, size = kind_row(kind)
    options = ", ".join(f"`{name}={value!r}`" for name, value in attention_options(cls).items())
    facts = {
        "cost": f"`{cls.traits.cost}`",
        "sequences, maps": f"{sequences}, {maps}",
        "prefix tokens": prefix,
        "`key_padding_mask`": mask,
        "causal": causal,
        "other sizes of maps": size,
        "options": options,
        "gym": ", ".join(f"{task} {learned[task]}" for task in TASKS if task in learned) or "not measured",
    }
    wins = [f"{what} {crossing_cell(found[kind, what])}" for what in QUANTITIES if (kind, what) in found]
    if wins:
        given = "".join(f"; with `{name}={value!r}`" for name, value in FIXED_TOKENS.get(kind, {}).items())
        facts["break-even length"] = ", ".join(wins) + given
    # A bar would end the cell, even within code.
    table = markdown_table([f"`{kind}`", ""], ([name, fact.replace("|", "\\|")] for name, fact in facts.items()))
    first, about = (module.__doc__ or "").partition("\n")[0], inspect.cleandoc(cls.__dict__["__doc__"])
    text = f"{first} [Source]({source})\n\n{docstring_markdown(about)}"
    text = re.sub(r"arXiv[ :](\d{4}\.\d{5})", r"[arXiv \1](https://arxiv.org/abs/\1)", text)
    return f"## {kind}\n{text}\n\n{table}\n"
