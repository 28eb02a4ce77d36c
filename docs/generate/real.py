"""The tables and the chart of what was measured on real pictures, from the results of `python -m studies real`."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from docs.generate.svg import dot, picture, text
from soft_vit.text_tables import markdown_table
from studies.real import runs
from studies.real.judge import SOURCES

COLOURS = {"q": ("#0969da", "#4493f8"), "l": ("#bc4c00", "#f0883e")}
LEFT, TOP, WIDE, HIGH = 60, 50, 660, 260
# Of the real teacher.
BLOCKS = 12
# Students are named that have a cosine larger by this than all that took less time, and those with a probe.
MIN_GAIN = 0.01
Results = dict[str, dict[str, Any]]


def over_seeds(values: Sequence[float], digits: int = 1) -> str:
    """Return a mean with the range over seeds, or a single value."""
    shown = f"{fmean(values):.{digits}f}"
    return f"{shown} ({min(values):.{digits}f} to {max(values):.{digits}f})" if len(values) > 1 else shown


def _by_seeds(results: Results) -> dict[str, list[dict[str, Any]]]:
    """Group results whose names end with a seed."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for name, result in results.items():
        groups[name.rpartition("_")[0]].append(result)
    return groups


def measured(results: Iterable[dict[str, Any]]) -> str:
    """Return on which machines and days results were measured, in one line."""
    return "; ".join(sorted({f"{result['machine']}, {result['date']}" for result in results}))


def _total_minutes(name: str, results: Results) -> float:
    """Return the CPU minutes of a student, with those of the one that it began with."""
    after = results[name]["student"].get("after")
    return results[name]["cpu_minutes"] + (results[after]["cpu_minutes"] if after else 0)


def _steps(name: str, results: Results) -> str:
    student = results[name]["student"]
    own, after = student["steps"], student.get("after")
    return " + ".join(str(n) for n in ([results[after]["student"]["steps"][0], *own[1:]] if after else own) if n)


def teacher_table(results: Results) -> str:
    """Return how exactly the teacher was converted, and what a probe reads from its features."""
    rows = []
    for result in results.values():
        found, probe = result["differences"], result["probe"]
        cells = [result["pictures"], *(f"{found[name]:.1e}" for name in ("tokens", "saliency", "map"))]
        rows.append([*cells, *(f"{probe[name]:.1f}" for name in ("ridge", "neighbours", "majority"))])
    header = ["pictures", "tokens, over the largest", "saliency", "the package's own map"]
    return markdown_table([*header, "defects by ridge %", "by neighbours %", "majority %"], rows)


def students_table(results: Results) -> str:
    """Return a row for each student, a mean over seeds, the best first."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in results:
        groups[name.partition("_seed")[0]].append(name)
    rows = []
    for names in groups.values():
        student, history = results[names[0]]["student"], results[names[0]]["history"]
        judged = [next(iter(results[name]["judged"].values())) for name in names]
        size, intermediates = next(iter(results[names[0]]["judged"])), student["intermediates"]
        learned = "every" if len(intermediates) == BLOCKS - 1 else ", ".join(map(str, intermediates)) or "none"
        phases = [history.get(f"phase {i}") for i in (1, 2, 3)]
        rates = student["lr"][1:] if student["steps"][1] else student["lr"][:1]
        softmax = ", ".join(map(str, history.get("softmax", {}).get("kept", []))) or "none"
        cells = [size, f"`{student['kind']}`", softmax, "varied" if student.get("vary") else "plain"]
        cells += [student.get("match", "outputs"), _steps(names[0], results), f"{rates[0]:g}", learned]
        cells += [" ".join(str(phase["step"]) for phase in phases if phase and "step" in phase)]
        cells += [over_seeds([found[key] for found in judged], 3) for key in ("cosine", "agreement", "overlap")]
        cells.append(f"{fmean(_total_minutes(name, results) for name in names):.1f}")
        rows.append((fmean(found["cosine"] for found in judged), cells))
    header = ["pixels", "kind", "softmax in", "crops", "match", "steps", "last rate", "blocks learned too", "kept step"]
    header += ["cosine", "agreement", "overlap", "CPU minutes"]
    return markdown_table(header, [row for _, row in sorted(rows, key=lambda pair: -pair[0])])


def sizes_table(results: Results) -> str:
    """Return a row for each size at which a student with a probe was judged, and one for pictures that it learned."""
    rows = []
    for name, result in results.items():
        if "probe" in result:
            probe = [f"{result['probe'][key]:.1f}" for key in ("ridge", "neighbours")]
            judged = dict(result["judged"])
            if "seen" in result:
                judged[f"{next(iter(judged))}, of training"] = result["seen"]
            for size, found in judged.items():
                of_sources = (found[f"cosine/{source}"] for source in SOURCES)
                cells = [f"{x:.3f}" for x in (found["cosine"], *of_sources, found["agreement"], found["overlap"])]
                rows.append([name if probe[0] else "", size, *cells, *probe])
                probe = ["", ""]
    header = ["student", "pixels", "cosine", *(f"of {source}" for source in SOURCES), "agreement", "overlap"]
    header += ["defects by ridge %", "by neighbours %"]
    return markdown_table(header, rows) if rows else ""


def students_chart(results: Results) -> str:
    """Plot the cosine of each student's features with the teacher's against its CPU minutes."""
    points = []
    for name, result in results.items():
        found = next(iter(result["judged"].values()))
        kind = result["student"]["kind"]
        points.append((_total_minutes(name, results), found["cosine"], "l" if "hedgehog" in kind else "q", name))
    longest, low = max(point[0] for point in points), math.floor(20 * min(point[1] for point in points)) / 20
    across = lambda minutes: LEFT + 10 + (WIDE - 180) * minutes / longest  # noqa: E731  short
    up = lambda cosine: TOP + HIGH * (1 - cosine) / (1 - low)  # noqa: E731
    parts = [text(LEFT, 26, "Cosine with the real teacher's features on held-out pictures", "b")]
    for i in range(round((1 - low) * 20) + 1):
        parts.append(f'<path class="thin" d="M{LEFT} {up(low + i / 20):.1f} H{LEFT + WIDE}"/>')
        parts.append(text(LEFT - 8, up(low + i / 20) + 4, f"{low + i / 20:.2f}", "s", "end"))
    for minutes in range(0, math.ceil(longest) + 1, max(1, round(longest / 8))):
        parts.append(text(across(minutes), TOP + HIGH + 20, f"{minutes}", "s", "middle"))
    parts.append(text(LEFT + WIDE, TOP + HIGH + 20, "CPU minutes", "s", "end"))
    named, best = {name for name in results if "probe" in results[name]}, 0.0
    for _, cosine, _, name in sorted(points):
        if cosine > best + MIN_GAIN:
            named.add(name)
            best = cosine
    labels: list[tuple[float, float, float]] = []
    for minutes, cosine, style, name in sorted(points, key=lambda point: (point[1], -point[0])):
        parts.append(dot(across(minutes), up(cosine), style, name))
        if name not in named:
            continue
        x, y, width = across(minutes) + 6, up(cosine) - 6, 7 * len(name) + 20
        # Above the labels that it would cross.
        for x_below, y_below, width_below in labels:
            if x < x_below + width_below and x_below < x + width and abs(y_below - y) < 14:
                y = y_below - 14
        labels.append((x, y, width))
        parts.append(text(round(x, 1), round(y, 1), name, "s"))
    title = "Cosine of students with the real teacher against CPU minutes"
    return picture(title, LEFT + WIDE + 20, TOP + HIGH + 40, COLOURS, parts)


def accuracy_table(results: Results, name: str, metric: str = "") -> str:
    """Return a row for each model with the accuracy over seeds; metric: of a run by config."""
    rows = []
    for model, group in _by_seeds(results).items():
        values = [result["metrics"][metric] if metric else result["accuracy"] for result in group]
        minutes = [result["cpu_minutes"] for result in group]
        rows.append((fmean(values), [f"`{model}`", len(group), over_seeds(values, 2), over_seeds(minutes)]))
    header = [name, "seeds", "test accuracy %", "CPU minutes"]
    return markdown_table(header, [row for _, row in sorted(rows, key=lambda pair: -pair[0])])


def photo_table(results: Results) -> str:
    """Return the seconds of each side with one photograph, and how near their tokens are."""
    rows = []
    for name, found in results.items():
        times = (f"{middle:.1f} ({low:.1f} to {high:.1f})" for middle, low, high in found["seconds"].values())
        size = "{} x {}".format(*found["size"])
        rows.append([f"`{name}`", size, found["tokens"], *times, f"{found['cosine']:.3f}", f"{found['overlap']:.2f}"])
    header = ["student", "pixels", "tokens", "seconds with softmax", "seconds of the student", "cosine", "overlap"]
    return markdown_table(header, rows)


SECTIONS: dict[str, tuple[str, Callable[[Results], str]]] = {
    "teacher": ("The teacher", teacher_table),
    "linearise": ("Students of the real teacher", lambda of: f"{students_table(of)}\n\n{sizes_table(of)}".strip()),
    "photo": ("One photograph", photo_table),
    "fashion": ("Fashion-MNIST", lambda of: accuracy_table(of, "config", "accuracy/top1")),
    "attentions": ("Attentions in one small ViT", lambda of: accuracy_table(of, "kind")),
    "cells": ("Solar cells", lambda of: accuracy_table(of, "begins with", "accuracy/top1")),
}


def real_tables(folder: Path = runs.RESULTS) -> str:
    """Return the sections with tables, in Markdown, of all parts with results."""
    parts = []
    for part, (title, table) in SECTIONS.items():
        if of := runs.load(part, folder):
            parts.append(f"### {title}\n{table(of)}\n\n{measured(of.values())}.")
    return "\n\n".join(parts) + "\n"
