"""What a study says: tables, checks of its validity, pictures."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np

from soft_vit.gym import TASKS
from soft_vit.gym.study import Cell, Study
from soft_vit.gym.training import Result
from soft_vit.text_tables import csv_table, markdown_table

REACHED = 0.9
# Drawn in colour; all others are grey.
SHOWN = ("none", "softmax", "soft", "soft_plus", "linear", "nystrom", "performer", "linformer")


class Score(NamedTuple):
    """Accuracy of a cell over its seeds, in [0, 1]."""

    mean: float
    deviation: float
    count: int

    @property
    def squared_error(self) -> float:
        return self.deviation**2 / self.count


Scores = Mapping[tuple[str, str], Score]


def task_name(cell: Cell) -> str:
    """A task and the options that are given, such as recall num_tokens=144."""
    return " ".join([cell.task, *(f"{name}={value}" for name, value in cell.task_options.items())])


def scores(study: Study) -> dict[tuple[str, str], Score]:
    """Of complete cells, by task and kind."""
    found = {}
    for cell in study.cells:
        last = [result.accuracy[-1] for result in study.results(cell)]
        if len(last) == study.seeds:
            deviation = statistics.stdev(last) if len(last) > 1 else 0.0
            found[task_name(cell), cell.kind] = Score(statistics.mean(last), deviation, len(last))
    return found


def results_csv(study: Study) -> str:
    """A row for each run that is there."""
    header = ["task", "kind", "model", "num_tokens", "difficulty", "seed", "lr", "steps", "accuracy", "accuracy_off"]
    rows = []
    for cell, result in _results(study):
        run = result.run
        rows.append(
            [
                *(run.task, cell.kind, run.model, result.num_tokens, run.task_options.get("difficulty"), run.seed),
                *(run.lr, run.steps, _figure(result.accuracy[-1]), _figure(result.accuracy_off)),
                *(_figure(result.share[-1] if result.share else None), result.steps_to(REACHED)),
                f"{result.cpu_seconds:.1f}",
            ]
        )
    return csv_table([*header, "share", "steps_to_90", "cpu_seconds"], rows)


def _figure(value: float | None) -> str | None:
    return None if value is None else f"{value:.4g}"


def _results(study: Study) -> Iterator[tuple[Cell, Result]]:
    for cell in study.cells:
        for result in study.results(cell):
            yield cell, result


def names(found: Scores) -> tuple[list[str], list[str]]:
    """Tasks, and kinds from the best mean above chance to the worst; kinds that lack tasks come last."""
    tasks = list(dict.fromkeys(task for task, _ in found))
    kinds = list(dict.fromkeys(kind for _, kind in found))
    means = {kind: [found[task, kind].mean for task in tasks if (task, kind) in found] for kind in kinds}
    return tasks, sorted(kinds, key=lambda kind: (-len(means[kind]), -statistics.mean(means[kind])))


def scores_table(found: Scores) -> str:
    """Mean and standard deviation in percent.

    The best of a task is bold where its lead over the next exceeds twice the standard error of their difference.
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

    def mean(kind: str) -> str:
        have = [found[task, kind].mean for task in tasks if (task, kind) in found]
        return f"{100 * statistics.mean(have):.1f}" if len(have) == len(tasks) else ""

    rows = [[kind, *(cell((task, kind)) for task in tasks), mean(kind)] for kind in kinds]
    return markdown_table(["attention", *tasks, "mean"], rows)


def steps_table(study: Study) -> str:
    """Steps until 90 % accuracy, the median over seeds; a dash where a seed or more does not get there."""
    found = scores(study)
    tasks, kinds = names(found)
    steps = {}
    for cell in study.cells:
        reached = [result.steps_to(REACHED) for result in study.results(cell)]
        numbers = [step for step in reached if step is not None]
        key = task_name(cell), cell.kind
        steps[key] = f"{statistics.median(numbers):g}" if numbers and len(numbers) == len(reached) else "–"
    rows = [[kind, *(steps.get((task, kind), "") for task in tasks)] for kind in kinds]
    return markdown_table(["attention", *tasks], rows)


def validity_table(study: Study) -> str:
    """For each task: what single tokens can reach, `none`, softmax, and how well seeds agree on the order of kinds."""
    found, ceilings = scores(study), single_token_ceilings(study)
    tasks, kinds = names(found)
    rows = []
    for task in tasks:
        none, softmax = found.get((task, "none")), found.get((task, "softmax"))
        none_cell = softmax_cell = ""
        if none is not None:
            off = abs(none.mean - ceilings[task]) / max(none.squared_error**0.5, 1e-9)
            none_cell = f"{100 * none.mean:.1f} ± {100 * none.deviation:.1f} ({off:.1f} standard errors off)"
        if softmax is not None:
            softmax_cell = f"{100 * softmax.mean:.1f} (+{100 * (softmax.mean - ceilings[task]):.0f})"
        rows.append([task, f"{100 * ceilings[task]:.1f}", none_cell, softmax_cell, _agreement(study, task, kinds)])
    return markdown_table(["task", "ceiling of single tokens", "none", "softmax", "rank correlation of seeds"], rows)


def _agreement(study: Study, task: str, kinds: Sequence[str]) -> str:
    """Spearman's rank correlation of kinds, the mean over pairs of seeds."""
    last = [[result.accuracy[-1] for result in study.results(cell)] for cell in study.cells if task_name(cell) == task]
    last = [values for values in last if len(values) == study.seeds]
    if len(last) < 3 or study.seeds < 2:
        return ""
    ranks = [_ranks(np.array(column)) for column in zip(*last, strict=True)]
    return f"{np.mean([np.corrcoef(a, b)[0, 1] for a, b in combinations(ranks, 2)]):.2f}"


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0 up; equal values share the mean of theirs."""
    below = (values[None] < values[:, None]).sum(1)
    return below + ((values[None] == values[:, None]).sum(1) - 1) / 2


def report(study: Study, head: str) -> str:
    """The page: head, scores, steps, validity."""
    found = scores(study)
    sections = [
        head,
        f"Accuracy in percent, mean ± standard deviation of {study.seeds} seeds; bold: the best of a task, where its "
        f"lead over the next exceeds twice the standard error of their difference.\n\n{scores_table(found)}",
        f"Steps until {REACHED:.0%} accuracy, the median of seeds; a dash where a seed does not get there.\n\n"
        f"{steps_table(study)}",
        "Validity: a model whose tokens exchange nothing (`none`) reaches the ceiling of single tokens, softmax is far "
        f"above it, and seeds agree on the order of kinds.\n\n{validity_table(study)}",
    ]
    return "\n\n".join(sections) + "\n"


def plot_scores(found: Scores, ceilings: Mapping[str, float], path: Path) -> None:
    """A heat map of kinds and tasks: 0 is the ceiling of single tokens, 1 perfect; numbers are percent of accuracy."""
    from matplotlib.figure import Figure

    tasks, kinds = names(found)
    share = np.full((len(kinds), len(tasks)), np.nan)
    for (task, kind), score in found.items():
        gained = (score.mean - ceilings[task]) / (1 - ceilings[task])
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
    """Accuracy against steps, a panel for each task: means over seeds, some kinds in colour and all others grey."""
    from matplotlib.figure import Figure

    tasks = list(dict.fromkeys(task_name(cell) for cell in study.cells if study.results(cell)))
    columns = min(3, len(tasks))
    rows = -(-len(tasks) // columns)
    figure = Figure(figsize=(4.2 * columns, 3.0 * rows + 0.5), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes in grid[len(tasks) :]:
        axes.set_visible(False)
    panels = dict(zip(tasks, grid, strict=False))
    handles = {}
    for cell in sorted(study.cells, key=lambda cell: cell.kind in SHOWN):
        results = study.results(cell)
        if not results:
            continue
        shown = cell.kind in SHOWN
        style = {"color": f"C{SHOWN.index(cell.kind)}", "lw": 1.8} if shown else {"color": "0.85", "lw": 1}
        mean = 100 * np.mean([result.accuracy for result in results], axis=0)
        (line,) = panels[task_name(cell)].plot(results[0].steps, mean, **style)
        handles[cell.kind if shown else "others"] = line
    for task, axes in panels.items():
        axes.set(title=task, xlabel="step", ylabel="accuracy (%)", ylim=(0, 102))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=5, frameon=False)
    figure.savefig(path, dpi=150)


def plot_against(study: Study, option: str, path: Path) -> None:
    """Accuracy against the number of tokens or the difficulty, a panel for each task, a line for each kind."""
    from matplotlib.figure import Figure

    tasks = list(dict.fromkeys(cell.task for cell in study.cells))
    figure = Figure(figsize=(4.2 * len(tasks), 3.5), layout="constrained")
    for axes, task in zip(figure.subplots(1, len(tasks), squeeze=False).flat, tasks, strict=True):
        for kind in dict.fromkeys(cell.kind for cell in study.cells):
            cells = [cell for cell in study.cells if (cell.task, cell.kind) == (task, kind) and study.results(cell)]
            points = sorted(
                ((cell.task_options[option], study.results(cell)) for cell in cells), key=lambda point: point[0]
            )
            means = [100 * statistics.mean(result.accuracy[-1] for result in results) for _, results in points]
            axes.plot([value for value, _ in points], means, "o-", label=kind)
        axes.set(title=task, xlabel=option.replace("_", " "), ylabel="accuracy (%)", ylim=(0, 102))
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


def single_token_ceilings(study: Study) -> dict[str, float]:
    """What single tokens can reach, by task."""
    cells = {task_name(cell): cell for cell in study.cells}
    return {name: TASKS[cell.task](**cell.task_options).ceiling for name, cell in cells.items()}
