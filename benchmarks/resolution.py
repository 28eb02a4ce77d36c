"""Measure memory and time of a training step of a feature pyramid, per token, as images grow."""

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import timm
import torch
from torch import Tensor, nn
from tqdm import tqdm

from benchmarks.memory import training_memory, training_step
from benchmarks.operator import slopes_table
from benchmarks.report import Report
from benchmarks.timer import Timing, time_in_turn
from soft_vit.probe.cost import seconds_of
from soft_vit.probe.load import require_pyramid
from soft_vit.text_tables import markdown_table

SIZES = ((224, 224), (448, 448), (800, 1333), (896, 896), (1344, 1344), (1792, 1792))
FORMS: dict[str, dict[str, Any]] = {"max_bottleneck=(7, 7)": {"max_bottleneck": (7, 7)}, "as released": {}}
"""Forms of one model, and the model arguments of each."""

Case = tuple[str, tuple[int, int]]
"""A form, and height and width of the image."""


class _PyramidLoss(nn.Module):
    """A scalar to call backward on: the sum of the means of all feature maps; images `[B, 3, H, W]`."""

    def __init__(self, name: str, device: torch.device | str, **kwargs: Any) -> None:
        super().__init__()
        self.features = timm.create_model(name, features_only=True, device=device, **kwargs)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([feature.float().mean() for feature in self.features(x)]).sum()


def measure_resolutions(
    name: str,
    sizes: Sequence[tuple[int, int]],
    forms: Mapping[str, Mapping[str, Any]] = FORMS,
    *,
    device: str | torch.device = "cpu",
    rounds: int = 5,
    max_seconds: float = 60.0,
) -> dict[Case, Timing]:
    """Measure training steps of one image through the feature pyramid of a timm model, by form and size (H, W).

    The size of a timing is the number of tokens at stride 4. Memory is measured by `training_memory`. Times are taken
    in rounds over all forms and sizes; rounds=0 takes none. A size and all larger ones are not timed if a step would
    take more than max_seconds at the previous size's time per token.
    """
    builds = {form: partial(_PyramidLoss, name, **options) for form, options in forms.items()}
    models = {form: build(device=device) for form, build in builds.items()} if rounds else {}
    cases = [(form, size) for form in forms for size in sorted(sizes, key=lambda size: size[0] * size[1])]
    memory, steps, rates = {}, {}, dict.fromkeys(forms, 0.0)
    for form, size in tqdm(cases, desc="memory and first steps", leave=False):
        memory[form, size], tokens = training_memory(builds[form], (1, 3, *size), device), size[0] * size[1]
        if rounds and rates[form] * tokens <= max_seconds:
            step = steps[form, size] = partial(training_step, models[form], torch.randn(1, 3, *size, device=device))
            rates[form] = seconds_of(step, device) / tokens
        else:
            rates[form] = float("inf")
    seconds = time_in_turn(steps, rounds, device, desc="rounds") if steps else {}
    return {
        (form, (h, w)): Timing(form, "training", h * w // 16, seconds.get((form, (h, w)), ()), memory[form, (h, w)])
        for form, (h, w) in cases
    }


def resolution_table(found: Mapping[Case, Timing]) -> str:
    """Return a Markdown table of the cost per token at each size, and its ratio to the smallest size of a form."""
    header = ["form", "image", "tokens", "MB", "KB per token", "ratio", "s", "quartiles", "µs per token", "ratio"]
    rows: list[list[str]] = []
    first: dict[str, Timing] = {}
    for (form, size), timing in found.items():
        base = first.setdefault(form, timing)
        memory, base_memory = timing.memory / timing.size, base.memory / base.size
        cells = [form, f"{size[0]} x {size[1]}", f"{timing.size}", f"{timing.megabytes:.0f}"]
        cells += [f"{memory / 2**10:.1f}", f"{memory / base_memory:.2f}"]
        if timing.time:
            rate, base_rate = timing.time.median / timing.size, base.time.median / base.size
            cells += [*timing.time.cells(".2f"), f"{rate * 1e6:.1f}", f"{rate / base_rate:.2f}"]
        else:
            cells += ["not measured", "", "", ""]
        rows.append(cells)
    return markdown_table(header, rows)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a softmax-free pyramid, such as soft_tiny")
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s); 0 for memory alone")
    parser.add_argument("--max-seconds", type=float, default=60, help="skip longer steps")


def run(args: argparse.Namespace) -> Report:
    require_pyramid(args.model)
    options = dict(device=args.device, rounds=args.rounds, max_seconds=args.max_seconds)
    found = measure_resolutions(args.model, SIZES, **options)
    words = f"one image, float32, forward and backward of {args.model}. Ratios are to the smallest image of a form."
    tables = [resolution_table(found), slopes_table(list(found.values()), "form")]
    return Report("Cost per token as images grow", words, tables)
