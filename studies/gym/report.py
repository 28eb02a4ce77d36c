"""The report of a study: tables, checks of its validity, plots."""

import statistics
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from soft_vit.text_tables import csv_table, markdown_table
from studies.gym import NOT_ASKED, TASKS, Batch, Task
from studies.gym.study import Cell, Study
from studies.gym.training import Result, tests

REACHED = 0.9
CSV_COLUMNS = ("task", "kind", "num_tokens", "difficulty", "seed", "lr", "steps", "accuracy", "accuracy_off")
CSV_COLUMNS += ("share", "steps_to_90", "cpu_seconds")
# Other attentions are drawn in grey.
COLOURED = ("softmax", "soft", "linear", "soft_plus", "nystrom", "performer", "linformer")
COLOURS = {"none": "black", **{kind: f"C{number}" for number, kind in enumerate(COLOURED)}}


class Score(NamedTuple):
    """Mean, standard deviation and number of accuracies in [0, 1]."""

    mean: float
    deviation: float
    count: int

    @property
    def squared_error(self) -> float:
        return self.deviation**2 / self.count


# By task and attention.
Scores = Mapping[tuple[str, str], Score]


def task_name(cell: Cell) -> str:
    """Return the name of a cell's task with its options, such as `recall num_tokens=144`."""
    return " ".join([cell.task, *(f"{name}={value}" for name, value in cell.task_options.items())])


def scores(study: Study) -> dict[tuple[str, str], Score]:
    """Return the scores of complete cells, by task and attention."""
    found = {}
    for cell in study.complete_cells():
        last = [result.accuracy[-1] for result in study.results(cell)]
        deviation = statistics.stdev(last) if len(last) > 1 else 0.0
        found[task_name(cell), cell.kind] = Score(statistics.mean(last), deviation, len(last))
    return found


def results_csv(study: Study) -> str:
    """Return CSV with a row for each run that exists."""
    rows = [_csv_row(cell, result) for cell in study.cells for result in study.results(cell)]
    return csv_table(CSV_COLUMNS, [[row[column] for column in CSV_COLUMNS] for row in rows])


def _csv_row(cell: Cell, result: Result) -> dict[str, Any]:
    def figure(value: float | None) -> str | None:
        return None if value is None else f"{value:.4g}"

    return {
        **asdict(result.run),
        "kind": cell.kind,
        "num_tokens": result.num_tokens,
        "difficulty": result.run.task_options.get("difficulty"),
        "accuracy": figure(result.accuracy[-1]),
        "accuracy_off": figure(result.accuracy_off),
        "share": figure(result.share[-1] if result.share else None),
        "steps_to_90": result.steps_to(REACHED),
        "cpu_seconds": f"{result.cpu_seconds:.1f}",
    }


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

    def cell(key: tuple[str, str]) -> str:
        if key not in found:
            return ""
        text = f"{100 * found[key].mean:.1f} ± {100 * found[key].deviation:.1f}"
        return f"**{text}**" if key in bold else text

    rows = [[kind, *(cell((task, kind)) for task in tasks), f"{100 * _mean(found, kind):.1f}"] for kind in kinds]
    return markdown_table(["attention", *tasks, "mean"], rows)


def table(study: Study, value: Callable[[list[Result]], str]) -> str:
    """Return a Markdown table with a value for each complete cell, computed from its results."""
    tasks, kinds = names(scores(study))
    values = {(task_name(cell), cell.kind): value(study.results(cell)) for cell in study.complete_cells()}
    return markdown_table(
        ["attention", *tasks], [[kind, *(values.get((task, kind), "") for task in tasks)] for kind in kinds]
    )


def median_steps(results: list[Result]) -> str:
    """Return the median over seeds of the steps until 90 % accuracy, or a dash if a seed does not reach it."""
    steps = [result.steps_to(REACHED) for result in results]
    return "–" if None in steps else f"{statistics.median(steps):g}"


def points_lost(results: list[Result]) -> str:
    """Return the mean accuracy in points that a trained model loses with its attentions switched off."""
    lost = [result.accuracy[-1] - result.accuracy_off for result in results if result.accuracy_off is not None]
    return str(round(100 * statistics.mean(lost))) if len(lost) == len(results) else ""


def validity_table(study: Study, ceilings: Mapping[str, Score]) -> str:
    """Return a Markdown table by task: ceiling of single tokens, `none`, softmax, rank correlation of seeds."""
    found = scores(study)
    tasks, _ = names(found)
    rows = []
    for task in tasks:
        none, softmax, ceiling = found.get((task, "none")), found.get((task, "softmax")), ceilings[task]
        none_cell = softmax_cell = ""
        if none is not None:
            error = (none.squared_error + ceiling.squared_error) ** 0.5
            off = abs(none.mean - ceiling.mean) / max(error, 1e-9)
            none_cell = f"{100 * none.mean:.1f} ± {100 * none.deviation:.1f} ({off:.1f} standard errors off)"
        if softmax is not None:
            softmax_cell = f"{100 * softmax.mean:.1f} (+{100 * (softmax.mean - ceiling.mean):.1f})"
        rows.append([task, f"{100 * ceiling.mean:.1f}", none_cell, softmax_cell, _agreement(study, task)])
    return markdown_table(["task", "ceiling of single tokens", "none", "softmax", "rank correlation of seeds"], rows)


def _agreement(study: Study, task: str) -> str:
    """Return Spearman's rank correlation of attentions, averaged over pairs of seeds."""
    cells = [cell for cell in study.complete_cells() if task_name(cell) == task]
    last = [[result.accuracy[-1] for result in study.results(cell)] for cell in cells]
    if len(last) < 3 or study.seeds < 2:
        return ""
    ranks = [_ranks(np.array(column)) for column in zip(*last, strict=True)]
    return f"{np.mean([np.corrcoef(a, b)[0, 1] for a, b in combinations(ranks, 2)]):.2f}"


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return ranks from 0. Equal values get their mean rank."""
    below = (values[None] < values[:, None]).sum(1)
    return below + ((values[None] == values[:, None]).sum(1) - 1) / 2


def single_token_ceilings(study: Study) -> dict[str, Score]:
    """Return the accuracy that single tokens can reach in the tests of each task.

    Its deviation is that of guessing if tokens see no hint, and otherwise 0.
    """
    cells = {task_name(cell): cell for cell in study.cells if study.results(cell)}
    return {name: _ceiling(TASKS[cell.task](**cell.task_options)) for name, cell in cells.items()}


def _ceiling(task: Task) -> Score:
    batch = Batch(*map(np.concatenate, zip(*tests(task), strict=True)))
    ceiling, asked = task.ceiling(batch), int((batch.labels != NOT_ASKED).sum())
    # With hints, the best answer to each is the same in all tests. Guesses vary.
    deviation = (ceiling * (1 - ceiling)) ** 0.5 if task.hints(batch) is None else 0.0
    return Score(ceiling, deviation, asked)


def report(study: Study, ceilings: Mapping[str, Score], head: str) -> str:
    """Return the report in Markdown: head, scores, steps, contribution of attentions, validity."""
    found = scores(study)
    sections = [
        f"# The gym's results\n{head}",
        f"## Accuracy\nIn percent, mean ± standard deviation of {study.seeds} seeds. Bold: the best of a task, if it "
        "leads by more than twice the standard error of the difference. `mean` is over the tasks that all types "
        f"have.\n\n{scores_table(found)}",
        f"## Steps until {REACHED:.0%} accuracy\nThe median of seeds; a dash where a seed does not get there.\n\n"
        f"{table(study, median_steps)}",
        "## Points lost with attentions off\nThe rest is the work of single tokens and of convolutions next to the "
        f"attention.\n\n{table(study, points_lost)}",
        "## Validity\nA task is valid if `none` stays at the ceiling of single tokens, softmax is far above it, and "
        "seeds agree on the order of types. Standard errors are those of seeds and, where nothing hints at answers, of "
        f"guesses at the tests.\n\n{validity_table(study, ceilings)}",
    ]
    return "\n\n".join(sections) + "\n"


def plot_scores(found: Scores, ceilings: Mapping[str, Score], path: Path) -> None:
    """Plot a heat map of attentions and tasks, from the ceiling of single tokens (0) to perfect (1)."""
    from matplotlib.figure import Figure

    tasks, kinds = names(found)
    share = np.full((len(kinds), len(tasks)), np.nan)
    for (task, kind), score in found.items():
        gained = (score.mean - ceilings[task].mean) / (1 - ceilings[task].mean)
        share[kinds.index(kind), tasks.index(task)] = min(max(gained, 0.0), 1.0)
    figure = Figure(figsize=(2.6 + 0.9 * len(tasks), 1.2 + 0.27 * len(kinds)), layout="constrained")
    axes = figure.subplots()
    picture = axes.imshow(share, vmin=0, vmax=1, cmap="viridis", aspect="auto")
    axes.set_xticks(range(len(tasks)), tasks, rotation=30, ha="right")
    axes.set_yticks(range(len(kinds)), kinds)
    for (task, kind), score in found.items():
        row, column = kinds.index(kind), tasks.index(task)
        colour = "black" if share[row, column] > 0.6 else "white"
        axes.text(column, row, f"{100 * score.mean:.0f}", ha="center", va="center", color=colour, fontsize=8)
    figure.colorbar(picture, label="from the ceiling of single tokens (0) to perfect (1)")
    figure.savefig(path, dpi=150)


def plot_training(study: Study, path: Path) -> None:
    """Plot accuracy against steps, a panel for each task: the mean over seeds of each attention."""
    from matplotlib.figure import Figure

    tasks = dict.fromkeys(task_name(cell) for cell in study.cells if study.results(cell))
    columns = min(3, len(tasks))
    rows = -(-len(tasks) // columns)
    figure = Figure(figsize=(4.2 * columns, 3.0 * rows + 0.5), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes in grid[len(tasks) :]:
        axes.set_visible(False)
    panels = dict(zip(tasks, grid, strict=False))
    for task, axes in panels.items():
        axes.set(title=task, xlabel="step", ylabel="accuracy (%)", ylim=(0, 102))
    handles = {}
    # Grey lines are drawn first, below the others.
    for cell in sorted(study.cells, key=lambda cell: cell.kind in COLOURS):
        if results := study.results(cell):
            accuracy = np.mean([result.accuracy for result in results], axis=0)
            colour, width = (COLOURS[cell.kind], 1.8) if cell.kind in COLOURS else ("0.85", 1)
            (line,) = panels[task_name(cell)].plot(results[0].steps, 100 * accuracy, ".-", color=colour, lw=width)
            handles[cell.kind if cell.kind in COLOURS else "others"] = line
    labels = [name for name in (*COLOURS, "others") if name in handles]
    figure.legend([handles[name] for name in labels], labels, loc="outside lower center", ncols=5, frameon=False)
    figure.savefig(path, dpi=150)
