"""The cost of a backbone per token as images grow: memory and time of a training step of its feature pyramid."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import timm
import torch
from torch import Tensor, nn
from tqdm import tqdm

from benchmarks.memory import training_memory
from benchmarks.timer import log_log_slope, seconds_of, spread
from soft_vit.probe.load import require_device
from soft_vit.text_tables import markdown_table

FORMS: dict[str, dict[str, Any]] = {"max_bottleneck=(7, 7)": {"max_bottleneck": (7, 7)}, "as released": {}}
"""Forms of one model, and the model arguments of each."""


@dataclass
class Cost:
    """One form of the model at one image size: peak bytes of a training step, and seconds of each round.

    seconds is empty if a step was expected to take longer than allowed.
    """

    form: str
    size: tuple[int, int]
    memory: int
    seconds: list[float] = field(default_factory=list)

    @property
    def tokens(self) -> float:
        """Of the first stage, at stride 4."""
        return self.size[0] * self.size[1] / 16


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
) -> list[Cost]:
    """Measure training steps of one image through the feature pyramid of a timm model, by form and size (H, W).

    Memory is measured by `training_memory`. Times are taken in rounds over all forms and sizes, after a warm-up step
    each; rounds=0 takes none. A size and all larger ones are skipped if they would exceed max_seconds at the previous
    size's time per token. Raises ValueError for 1 or 2 rounds, which have no quartiles, and for an unavailable device.
    """
    if rounds < 3 and rounds != 0:
        raise ValueError(f"rounds is {rounds}; give 0 to measure memory alone, or at least 3.")
    require_device(device)
    costs = [
        Cost(form, size, training_memory(partial(_PyramidLoss, name, **options), (1, 3, *size), device))
        for form, options in forms.items()
        for size in sorted(sizes, key=lambda size: size[0] * size[1])
    ]
    if rounds == 0:
        return costs
    models = {form: _PyramidLoss(name, device, **options).train() for form, options in forms.items()}
    with tqdm(total=(rounds + 1) * len(costs), desc="resolutions", leave=False) as bar:
        timed = []
        for form in forms:
            rate = 0.0
            for cost in (cost for cost in costs if cost.form == form):
                if rate * cost.tokens <= max_seconds:
                    rate = _seconds(models[form], cost.size, device) / cost.tokens
                    timed.append(cost)
                else:
                    rate = float("inf")
                bar.update()
        for _ in range(rounds):
            for cost in timed:
                cost.seconds.append(_seconds(models[cost.form], cost.size, device))
                bar.update()
    return costs


def _seconds(model: nn.Module, size: tuple[int, int], device: str | torch.device) -> float:
    x = torch.randn(1, 3, *size, device=device)

    def step() -> None:
        model(x).backward()
        model.zero_grad(set_to_none=True)

    return seconds_of(step, device)


def resolution_table(costs: Sequence[Cost]) -> str:
    """A Markdown table of the cost per token at each size, and its ratio to the smallest size of the same form."""
    header = ["form", "image", "tokens", "MB", "KB per token", "ratio", "s", "quartiles", "µs per token", "ratio"]
    rows: list[list[str]] = []
    first: dict[str, Cost] = {}
    for cost in costs:
        base = first.setdefault(cost.form, cost)
        memory, base_memory = cost.memory / cost.tokens, base.memory / base.tokens
        cells = [cost.form, f"{cost.size[0]} x {cost.size[1]}", f"{cost.tokens:.0f}", f"{cost.memory / 2**20:.0f}"]
        cells += [f"{memory / 2**10:.1f}", f"{memory / base_memory:.2f}"]
        if cost.seconds:
            middle, lower, upper = spread(cost.seconds)
            rate, base_rate = middle / cost.tokens, median(base.seconds) / base.tokens
            cells += [f"{middle:.2f}", f"{lower:.2f} - {upper:.2f}", f"{rate * 1e6:.1f}", f"{rate / base_rate:.2f}"]
        else:
            cells += ["not measured", "", "", ""]
        rows.append(cells)
    return markdown_table(header, rows)


def slopes_table(costs: Sequence[Cost]) -> str:
    """A Markdown table of the exponents with which memory and time grow in N."""
    rows = []
    for form in dict.fromkeys(cost.form for cost in costs):
        own = [cost for cost in costs if cost.form == form]
        memory = [(cost.tokens, cost.memory) for cost in own]
        time = [(cost.tokens, median(cost.seconds)) for cost in own if cost.seconds]
        slopes = (
            f"{log_log_slope(*zip(*p, strict=True)):.2f}" if len(p) > 1 else "not measured" for p in (memory, time)
        )
        rows.append((form, *slopes))
    return markdown_table(["form", "memory ~ N^", "time ~ N^"], rows)
