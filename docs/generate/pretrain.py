"""The tables and the chart of measured pre-training, from the results of `python -m studies real pretrain`."""

from collections import defaultdict
from statistics import fmean

from docs.generate.real import Results, measured
from docs.generate.svg import dot, picture, text
from soft_vit.text_tables import markdown_table
from studies.figures import over_seeds
from studies.real.pretrain import LABELS, LONG_STEPS, SETTINGS, STEPS

COLOURS = {"tuned": ("#0969da", "#4493f8"), "short": ("#8250df", "#ab7df8"), "scratch": ("#bc4c00", "#f0883e")}
WORDS = ("pre-trained", "from scratch, steps with labels", "from scratch, all steps")
LEFT, TOP, WIDE, HIGH = 60, 60, 220, 200
TITLES = {"fashion": "Fashion-MNIST", "cells": "Solar cells"}


def _groups(results: Results, steps: tuple[int, int] = STEPS) -> dict[tuple[str, str, str], dict[str, list[float]]]:
    """Return the accuracies over seeds of all beginnings, by data set, model and labels.

    steps: those without labels and with them.
    """
    groups: dict[tuple[str, str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    seeds = {result["seed"] for result in results.values() if tuple(result["steps"]) == steps}
    for result in results.values():
        # Labels alone take the same steps, however many there are without them.
        belongs = tuple(result["steps"]) == steps or result["begin"] == "short"
        if belongs and result["seed"] in seeds and result["begin"] in COLOURS:
            groups[result["data"], result["model"], result["labels"]][result["begin"]].append(result["accuracy"])
    whole = {key: both for key, both in groups.items() if len(both) == len(COLOURS)}
    return dict(sorted(whole.items(), key=lambda pair: (*pair[0][:2], list(LABELS).index(pair[0][2]))))


def pretrain_tables(results: Results) -> str:
    """Return the tables by data set and by attention type, in Markdown."""
    accuracies = [f"{words} %" for words in WORDS]
    rows = [
        [TITLES[data], f"`{model}`", steps[0], labels, *(over_seeds(both[begin]) for begin in COLOURS)]
        for steps in (STEPS, LONG_STEPS)
        for (data, model, labels), both in _groups(results, steps).items()
    ]
    gym = sorted((r for r in results.values() if r["begin"] == "gym"), key=lambda r: r["loss"])
    cells = [[f"`{r['model']}`", f"{r['loss']:.3f}", *(f"{r[begin]:.1f}" for begin in COLOURS)] for r in gym]
    steps = "{} steps without labels and {}".format(*gym[0]["steps"])
    about = f"Each type in one pyramid on Fashion-MNIST, one seed: {steps} with 1,000 labels."
    parts = [markdown_table(["images", "model", "steps without labels", "labels", *accuracies], rows)]
    parts += [f"### Which attentions learn so\n{about}"]
    parts += [markdown_table(["model", "loss on masked images", *accuracies], cells)]
    return "\n\n".join([*parts, f"{measured(results.values())}.\n"])


def pretrain_chart(results: Results) -> str:
    """Draw the accuracy of each model by its number of labels, with the range over seeds, a panel a data set."""
    groups = _groups(results)
    parts = [text(LEFT, 26, "Test accuracy, %, by the number of labels", "b")]
    for i, (begin, label) in enumerate(zip(COLOURS, WORDS, strict=True)):
        parts += [dot(LEFT + 5 + 220 * i, 42, begin), text(LEFT + 15 + 220 * i, 46, label, "s")]
    panels = [(data, model) for data in SETTINGS for model in dict.fromkeys(m for d, m, _ in groups if d == data)]
    for place, (data, model) in enumerate(panels):
        column, row = place % 3, place // 3
        x0, y0 = LEFT + column * (WIDE + 40), TOP + 20 + row * (HIGH + 60)
        values = [x for (d, _, _), both in groups.items() if d == data for part in both.values() for x in part]
        low, high = min(values), max(values)
        up = lambda x, y0=y0, low=low, high=high: y0 + HIGH * (high - x) / max(high - low, 1e-9)  # noqa: E731
        parts.append(text(x0, y0 - 8, f"{TITLES[data]}, {model}", "s"))
        for value in (low, high):
            parts.append(f'<path class="thin" d="M{x0} {up(value):.1f} h{WIDE}"/>')
            parts.append(text(x0 - 4, up(value) + 4, f"{value:.0f}", "s", "end"))
        for i, labels in enumerate(LABELS):
            x = x0 + WIDE * (i + 0.5) / len(LABELS)
            parts.append(text(x, y0 + HIGH + 18, labels, "s", "middle"))
            both = groups.get((data, model, labels), {})
            for shift, begin in zip((-12, 0, 12), COLOURS if both else (), strict=False):
                found = both[begin]
                span = f"M{x + shift:.1f} {up(min(found)):.1f} V{up(max(found)):.1f}"
                parts.append(f'<path class="{begin}0" d="{span}"/>')
                parts.append(dot(x + shift, up(fmean(found)), begin, f"{fmean(found):.1f}"))
    height = TOP + 20 + -(-len(panels) // 3) * (HIGH + 60)
    return picture("Accuracy with and without pre-training", LEFT + 3 * (WIDE + 40), height, COLOURS, parts)
