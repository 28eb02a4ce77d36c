"""The tables and the chart of what was measured on real pictures, from the results of `python -m studies real`."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from statistics import fmean
from typing import Any

from docs.generate.kinds import gym_scores
from docs.generate.scatter import label_places
from docs.generate.svg import dot, picture, text
from soft_vit.text_tables import markdown_table
from studies.figures import over_seeds
from studies.gym import TASKS
from studies.gym.report import rank_correlation
from studies.real import runs
from studies.real.bags import LARGE
from studies.real.judge import SOURCES

COLOURS = {"q": ("#0969da", "#4493f8"), "l": ("#bc4c00", "#f0883e")}
LEFT, TOP, WIDE, HIGH = 60, 50, 820, 260
# Of the real teacher.
BLOCKS = 12
# Students of all pictures are named that have a cosine above the first of these, and larger by the second than those
# that took less time; with a probe, above the third.
NAMED_FROM, MIN_GAIN, NAMED_WITH_PROBE = 0.88, 0.006, 0.945
TRAINING = {"seen": "of training", "left_out": "of training, left out"}
POOLINGS = {"mean": "mean", "max": "maximum", "gated": "gated attention"}
POOLINGS |= {kind: f"`{kind}`, class token" for kind in ("nystrom", "linear", "softmax_one")}
Results = dict[str, dict[str, Any]]


def measured(results: Iterable[dict[str, Any]]) -> str:
    """Return on which machines and days results were measured, in one line."""
    return "; ".join(sorted({f"{result['machine']}, {result['date']}" for result in results}))


def _total_minutes(name: str, results: Results) -> float:
    """Return the CPU minutes of a student, with those of the one that it began with."""
    after = results[name]["student"].get("after")
    return results[name]["cpu_minutes"] + (results[after]["cpu_minutes"] if after else 0)


def teacher_table(results: Results) -> str:
    """Return how exactly the teacher was converted, and what a probe reads from its features."""
    (result,) = results.values()
    cells = [result["pictures"], *(f"{result['differences'][name]:.1e}" for name in ("tokens", "saliency", "map"))]
    cells += [f"{result['probe'][name]:.1f}" for name in ("ridge", "neighbours", "majority")]
    cells += [f"{agreement:.3f}" for agreement in result["agreement"].values()]
    header = ["pictures", "tokens, over the largest", "saliency", "the package's own map", "defects by ridge %"]
    header += ["by neighbours %", "majority %", *(f"agreement, {change}" for change in result["agreement"])]
    return markdown_table(header, [cells])


def students_table(results: Results) -> str:
    """Return a row for each student, the best first, with the ranges over its seeds."""
    rows, seeds = [], defaultdict(list)
    for name in results:
        seeds[name.partition("_seed")[0]].append(name)
    for name, names in seeds.items():
        result = results[name]
        student, history = result["student"], result["history"]
        judged = [next(iter(results[each]["judged"].values())) for each in names]
        learned, steps, after = student["intermediates"], student["steps"], student.get("after")
        steps = [results[after]["student"]["steps"][0], *steps[1:]] if after else steps
        phases = [history.get(f"phase {i}", {}) for i in (1, 2, 3)]
        rates = student["lr"][1:] if student["steps"][1] else student["lr"][:1]
        softmax = ", ".join(map(str, history.get("softmax", {}).get("kept", []))) or "none"
        crops = "varied" if student.get("vary") else "plain"
        crops += f", of one photograph in {student['part']}" if student.get("part", 1) > 1 else ""
        crops += f", {100 * student['hidden']:g} % hidden" if student.get("hidden") else ""
        cells = ["/".join(map(str, student["sizes"])), f"`{student['kind']}`", softmax, crops]
        cells += [student.get("match", "outputs"), " + ".join(str(n) for n in steps if n), f"{rates[0]:g}"]
        parameters = student.get("trainable", "all") if steps[1] else "attention"
        cells += [parameters, "every" if len(learned) == BLOCKS - 1 else ", ".join(map(str, learned)) or "none"]
        cells.append(" ".join(str(phase["step"]) for phase in phases if "step" in phase))
        cells += [over_seeds([each[key] for each in judged], 3) for key in ("cosine", "agreement", "overlap")]
        minutes = over_seeds([_total_minutes(each, results) for each in names])
        rows.append((fmean(each["cosine"] for each in judged), [*cells, minutes]))
    header = ["pixels", "kind", "softmax in", "crops", "match", "steps", "last rate", "parameters"]
    header += ["blocks learned too", "kept step", "cosine", "agreement", "overlap", "CPU minutes"]
    return markdown_table(header, [row for _, row in sorted(rows, key=lambda pair: -pair[0])])


def sizes_table(results: Results) -> str:
    """Return a row for each size at which a student with a probe was judged, and for pictures of training."""
    rows = []
    for name, result in results.items():
        if result.keys() & {"probe", *TRAINING}:
            probe = [f"{result['probe'][key]:.1f}" if "probe" in result else "" for key in ("ridge", "neighbours")]
            own, *_ = result["judged"]
            learned = {f"{own}, {what}": result[key] for key, what in TRAINING.items() if key in result}
            for i, (size, found) in enumerate((result["judged"] | learned).items()):
                of_sources = (found[f"cosine/{source}"] for source in SOURCES)
                cells = [f"{x:.3f}" for x in (found["cosine"], *of_sources, found["agreement"], found["overlap"])]
                rows.append(["" if i else name, size, *cells, *(["", ""] if i else probe)])
    header = ["student", "pixels", "cosine", *(f"of {source}" for source in SOURCES), "agreement", "overlap"]
    return markdown_table([*header, "defects by ridge %", "by neighbours %"], rows)


def students_chart(results: Results) -> str:
    """Plot the cosine of each student's features with the teacher's against its CPU minutes."""
    points = []
    for name, result in results.items():
        cosine, kind = next(iter(result["judged"].values()))["cosine"], result["student"]["kind"]
        points.append((_total_minutes(name, results), cosine, "l" if "hedgehog" in kind else "q", name))
    longest, low = max(point[0] for point in points), math.floor(20 * min(point[1] for point in points)) / 20
    across = lambda minutes: LEFT + 10 + (WIDE - 180) * math.log(minutes / 2) / math.log(longest / 2)  # noqa: E731  short
    up = lambda cosine: TOP + HIGH * (1 - cosine) / (1 - low)  # noqa: E731
    parts = [text(LEFT, 26, "Cosine with the real teacher's features on held-out pictures", "b")]
    for i in range(round((1 - low) * 20) + 1):
        parts.append(f'<path class="thin" d="M{LEFT} {up(low + i / 20):.1f} H{LEFT + WIDE}"/>')
        parts.append(text(LEFT - 8, up(low + i / 20) + 4, f"{low + i / 20:.2f}", "s", "end"))
    parts += [text(across(x), TOP + HIGH + 20, f"{x}", "s", "middle") for x in (2, 5, 10, 20, 50, 100, 200)]
    parts.append(text(LEFT + WIDE, TOP + HIGH + 20, "CPU minutes", "s", "end"))
    named = {name for _, cosine, _, name in points if "probe" in results[name] and cosine > NAMED_WITH_PROBE}
    best = NAMED_FROM
    for _, cosine, _, name in sorted(points):
        if "hedgehog" in name and cosine > best + MIN_GAIN and results[name]["student"].get("part", 1) == 1:
            named.add(name)
            best = cosine
    dots = {name: (across(minutes), up(cosine)) for minutes, cosine, _, name in points}
    parts += [dot(*dots[name], style, name) for _, _, style, name in points]
    labels = [(*dots[name], name.removeprefix("hedgehog_")) for name in sorted(named)]
    # The title is above the corner.
    for (x, y), (_, _, name) in zip(label_places(labels, [*dots.values(), (LEFT, TOP)]), labels, strict=True):
        parts.append(text(round(x, 1), round(y, 1), name, "s"))
    title = "Cosine of students with the real teacher against CPU minutes"
    return picture(title, LEFT + WIDE + 20, TOP + HIGH + 40, COLOURS, parts)


def _by_name(results: Results) -> dict[str, list[tuple[float, float]]]:
    """Return accuracy and CPU minutes of each seed, by the name of the config or attention, the best first."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for name, result in results.items():
        found[name.rpartition("_")[0]].append((result["metrics"]["accuracy/top1"], result["cpu_minutes"]))
    return dict(sorted(found.items(), key=lambda pair: -fmean(accuracy for accuracy, _ in pair[1])))


def accuracy_table(what: str, results: Results) -> str:
    """Return a row for each config or attention, the best first, with the accuracy over seeds."""
    found = {name: [*zip(*pairs, strict=True)] for name, pairs in _by_name(results).items()}
    rows = [[f"`{name}`", len(x), over_seeds(x, 2), over_seeds(minutes)] for name, (x, minutes) in found.items()]
    return markdown_table([what, "seeds", "test accuracy %", "CPU minutes"], rows)


def ranks_table(results: Results) -> str:
    """Return how much each task of the gym ranks attention types as the odd item does."""
    accuracy = {kind: fmean(x for x, _ in pairs) for kind, pairs in _by_name(results).items()}
    learned, rows = gym_scores(runs.RESULTS.parent / "gym" / "results.csv"), []
    for task in TASKS:
        kinds = [kind for kind in accuracy if task in learned[kind]]
        ranks = rank_correlation([accuracy[kind] for kind in kinds], [learned[kind][task].mean for kind in kinds])
        rows.append([f"`{task}`", len(kinds), f"{ranks:.2f}"])
    return markdown_table(["task of the gym", "attentions", "rank correlation"], rows)


def photo_table(results: Results) -> str:
    """Return the seconds of each side with one photograph, and how near their tokens are."""
    ((name, found),) = results.items()
    times = (f"{middle:.1f} ({low:.1f} to {high:.1f})" for middle, low, high in found["seconds"].values())
    cells = [f"`{name}`", "{} x {}".format(*found["size"]), found["tokens"], *times]
    header = ["student", "pixels", "tokens", "seconds with softmax", "seconds of the student", "cosine", "overlap"]
    return markdown_table(header, [[*cells, f"{found['cosine']:.3f}", f"{found['overlap']:.2f}"]])


SECTIONS: dict[str, tuple[str, Callable[[Results], str]]] = {
    "teacher": ("The teacher", teacher_table),
    "linearise": ("Students of the real teacher", lambda of: f"{students_table(of)}\n\n{sizes_table(of)}"),
    "photo": ("One photograph", photo_table),
    "fashion": ("Fashion-MNIST", partial(accuracy_table, "config")),
    "cells": ("Eight classes of solar cells", partial(accuracy_table, "beginning")),
    "attentions": ("The odd item", lambda of: f"{accuracy_table('attention', of)}\n\n{ranks_table(of)}"),
}


def real_tables() -> str:
    """Return the sections with tables, in Markdown."""
    found = [(title, table, runs.load(part)) for part, (title, table) in SECTIONS.items()]
    return "\n\n".join(f"### {title}\n{table(of)}\n\n{measured(of.values())}." for title, table, of in found) + "\n"


def bags_table() -> str:
    """Return the accuracy, the area under the curve and the cost of each pooling of bags."""
    results, rows = runs.load("bags"), []
    for pool, words in POOLINGS.items():
        found = [one for one in results.values() if one["pool"] == pool and "auc" in one]
        accuracy, area = ([one[name] for one in found] for name in ("accuracy", "auc"))
        cost = results.get(f"cost_{pool}")
        cells = [f"{cost['seconds']:.1f}", f"{cost['gigabytes']:.2f}"] if cost else ["", ""]
        rows.append([words, over_seeds(accuracy), over_seeds(area, 3), *cells])
    header = ["pooling", "accuracy, %", "area under the curve", f"CPU seconds of {LARGE:,} instances", "GB"]
    return markdown_table(header, rows)
