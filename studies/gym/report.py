"""The report of a study, from its table of runs: scores, steps, and checks of its validity."""

import csv
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from soft_vit.cli import literal
from soft_vit.text_tables import csv_table, markdown_table
from studies.gym import NOT_ASKED, TASKS, Batch
from studies.gym.study import Study
from studies.gym.training import Result, tests

REACHED = 0.9
CSV_COLUMNS = ("task", "kind", "num_tokens", "difficulty", "seed", "lr", "steps", "accuracy", "accuracy_off")
CSV_COLUMNS += ("share", "steps_to_90", "cpu_seconds")


class Score(NamedTuple):
    """Mean, standard deviation and number of accuracies in [0, 1]."""

    mean: float
    deviation: float
    count: int

    @property
    def squared_error(self) -> float:
        return self.deviation**2 / self.count if self.count > 1 else math.inf

    def __str__(self) -> str:
        """Percent, with the deviation of several."""
        return f"{100 * self.mean:.1f}" + f" ± {100 * self.deviation:.1f}" * (self.count > 1)


Row = Mapping[str, str]
"""A run, by the columns of results.csv."""
Cells = Mapping[tuple[str, str], Sequence[Row]]
"""The runs of all seeds by task and attention."""
Scores = Mapping[tuple[str, str], Score]
"""Scores by task and attention."""


def results_csv(study: Study) -> str:
    """Return CSV with a row for each run that exists."""
    rows = [_csv_row(result) for cell in study.cells for result in study.results(cell)]
    return csv_table(CSV_COLUMNS, [[row[column] for column in CSV_COLUMNS] for row in rows])


def _csv_row(result: Result) -> dict[str, Any]:
    def figure(value: float | None) -> str | None:
        return None if value is None else f"{value:.4g}"

    return {
        **asdict(result.run),
        "kind": result.run.kind,
        "num_tokens": result.num_tokens,
        "difficulty": result.run.task_options.get("difficulty"),
        "accuracy": figure(result.accuracy[-1]),
        "accuracy_off": figure(result.accuracy_off),
        "share": figure(result.share[-1] if result.share else None),
        "steps_to_90": result.steps_to(REACHED),
        "cpu_seconds": f"{result.cpu_seconds:.1f}",
    }


def merged_csv(*tables: str) -> str:
    """Return the rows of tables by `results_csv`. A later row replaces one of the same task, attention and seed."""
    rows = [row for table in tables for row in csv.DictReader(table.splitlines())]
    found = {tuple(row[name] for name in CSV_COLUMNS[:5]): [row[name] for name in CSV_COLUMNS] for row in rows}
    return csv_table(CSV_COLUMNS, list(found.values()))


def _options(row: Row) -> dict[str, Any]:
    return {name: literal(row[name]) for name in ("num_tokens", "difficulty") if row[name]}


def task_name(task: str, options: Mapping[str, Any]) -> str:
    """Return the name of a task with its options, without the default number of tokens: `recall num_tokens=144`."""
    usual = {"num_tokens": TASKS[task]().num_tokens}
    return " ".join([task, *(f"{name}={value}" for name, value in options.items() if usual.get(name) != value)])


def read_cells(table: str) -> dict[tuple[str, str], list[Row]]:
    """Return the runs of a table by `results_csv`."""
    cells: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in csv.DictReader(table.splitlines()):
        cells[task_name(row["task"], _options(row)), row["kind"]].append(row)
    return cells


def scores(cells: Cells) -> dict[tuple[str, str], Score]:
    """Return the scores of cells."""
    found = {}
    for key, rows in cells.items():
        last = [float(row["accuracy"]) for row in rows]
        found[key] = Score(statistics.mean(last), statistics.stdev(last) if len(last) > 1 else 0.0, len(last))
    return found


def names(found: Scores) -> tuple[list[str], list[str]]:
    """Return the tasks, and the attentions from the best mean to the worst."""
    tasks = list(dict.fromkeys(task for task, _ in found))
    return tasks, sorted(dict.fromkeys(kind for _, kind in found), key=lambda kind: -_mean(found, kind))


def _mean(found: Scores, kind: str) -> float:
    """Return an attention's mean over the tasks that all attentions have, or else over all its tasks."""
    have = Counter(task for task, _ in found)
    own = {task: score.mean for (task, other), score in found.items() if other == kind}
    return statistics.mean([own[task] for task in own if have[task] == max(have.values())] or own.values())


def scores_table(found: Scores) -> str:
    """Return a Markdown table of means and standard deviations in percent.

    The best score of a task is bold if its lead over the next exceeds twice the standard error of their difference.
    """
    tasks, kinds = names(found)
    bold = set()
    for task in tasks:
        ranked = sorted(((found[task, kind], kind) for kind in kinds if (task, kind) in found), reverse=True)
        if len(ranked) > 1:
            (first, kind), (second, _) = ranked[:2]
            if first.mean - second.mean > 2 * (first.squared_error + second.squared_error) ** 0.5:
                bold.add((task, kind))

    cells = {key: f"**{score}**" if key in bold else str(score) for key, score in found.items()}
    means = {kind: f"{100 * _mean(found, kind):.1f}" for kind in kinds}
    rows = [[kind, *(cells.get((task, kind), "") for task in tasks), means[kind]] for kind in kinds]
    return markdown_table(["attention", *tasks, "mean"], rows)


def table(cells: Cells, value: Callable[[Sequence[Row]], str]) -> str:
    """Return a Markdown table with a value for each cell, computed from its runs."""
    tasks, kinds = names(scores(cells))
    rows = [[kind, *(value(cells[task, kind]) if (task, kind) in cells else "" for task in tasks)] for kind in kinds]
    return markdown_table(["attention", *tasks], rows)


def median_steps(rows: Sequence[Row]) -> str:
    """Return the median over seeds of the steps until 90 % accuracy, or a dash if a seed does not reach it."""
    steps = [row["steps_to_90"] for row in rows]
    return f"{statistics.median(map(int, steps)):g}" if all(steps) else "–"


def points_lost(rows: Sequence[Row]) -> str:
    """Return the mean accuracy in points that a trained model loses with its attentions switched off."""
    lost = [float(row["accuracy"]) - float(row["accuracy_off"]) for row in rows if row["accuracy_off"]]
    return str(round(100 * statistics.mean(lost))) if len(lost) == len(rows) else ""


def off_and_share(rows: Sequence[Row]) -> str:
    """Return the score, the accuracy with attentions switched off, and their share in the output of their layers."""
    off, share = (100 * statistics.mean(float(row[name]) for row in rows) for name in ("accuracy_off", "share"))
    return f"{scores({('', ''): rows})['', '']}, off {off:.1f}, {share:.0f} %"


def validity_table(cells: Cells) -> str:
    """Return a Markdown table by task: ceiling of single tokens, `none`, softmax, rank correlation of seeds."""
    found, ceilings = scores(cells), single_token_ceilings(cells)
    rows = []
    for task, ceiling in ceilings.items():
        none, softmax = found.get((task, "none")), found.get((task, "softmax"))
        none_cell = softmax_cell = ""
        if none is not None:
            error = (none.squared_error + ceiling.squared_error) ** 0.5
            off = abs(none.mean - ceiling.mean) / max(error, 1e-3)
            none_cell = f"{none} ({off:.1f} standard errors off)"
        if softmax is not None:
            softmax_cell = f"{100 * softmax.mean:.1f} (+{100 * (softmax.mean - ceiling.mean):.1f})"
        rows.append([task, f"{100 * ceiling.mean:.1f}", none_cell, softmax_cell, _agreement(cells, task)])
    return markdown_table(["task", "ceiling of single tokens", "none", "softmax", "rank correlation of seeds"], rows)


def _agreement(cells: Cells, task: str) -> str:
    """Return Spearman's rank correlation of attentions with all seeds, averaged over pairs of seeds."""
    seeds = max(map(len, cells.values()))
    last = [[float(row["accuracy"]) for row in rows] for (other, _), rows in cells.items() if other == task]
    last = [accuracies for accuracies in last if len(accuracies) == seeds]
    if len(last) < 3 or seeds < 2:
        return ""
    return f"{np.mean([rank_correlation(*pair) for pair in combinations(zip(*last, strict=True), 2)]):.2f}"


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Return Spearman's rank correlation of two scores of the same things."""
    return float(np.corrcoef(_ranks(np.array(a)), _ranks(np.array(b)))[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return ranks from 0. Equal values get their mean rank."""
    return (values[None] < values[:, None]).sum(1) + ((values[None] == values[:, None]).sum(1) - 1) / 2


def single_token_ceilings(cells: Cells) -> dict[str, Score]:
    """Return the accuracy that single tokens can reach in the tests of each task.

    Its deviation is that of guessing if tokens see no hint, and otherwise 0.
    """
    return {name: _ceiling(rows[0]["task"], **_options(rows[0])) for (name, _), rows in cells.items()}


@cache
def _ceiling(name: str, **options: Any) -> Score:
    task = TASKS[name](**options)
    batch = Batch(*map(np.concatenate, zip(*tests(task), strict=True)))
    ceiling, asked = task.ceiling(batch), int((batch.labels != NOT_ASKED).sum())
    # With hints, the best answer to each is the same in all tests. Guesses vary.
    deviation = (ceiling * (1 - ceiling)) ** 0.5 if task.hints(batch) is None else 0.0
    return Score(ceiling, deviation, asked)


def report(cells: Cells, head: str) -> str:
    """Return the report in Markdown: a head, scores, steps, contribution of attentions, validity."""
    seeds = max(map(len, cells.values()), default=0)
    sections = [
        head,
        f"## Accuracy\nIn percent, mean ± standard deviation of up to {seeds} seeds, without a deviation for one. "
        "Bold: the best of a task, if it leads by more than twice the standard error of the difference. `mean` is over "
        f"the tasks that all types have. Empty cells were not measured.\n\n{scores_table(scores(cells))}",
        f"## Steps until {REACHED:.0%} accuracy\nThe median of seeds; a dash where a seed does not get there.\n\n"
        f"{table(cells, median_steps)}",
        "## Points lost with attentions off\nThe rest is the work of single tokens and of convolutions next to the "
        f"attention.\n\n{table(cells, points_lost)}",
        "## Validity\nA task is valid if `none` stays at the ceiling of single tokens, softmax is far above it, and "
        "seeds agree on the order of types. Standard errors are those of seeds and, where nothing hints at answers, of "
        f"guesses at the tests.\n\n{validity_table(cells)}",
    ]
    return "\n\n".join(sections) + "\n"
