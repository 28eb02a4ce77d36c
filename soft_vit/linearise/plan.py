"""The plan of a run: steps of three phases, sizes of images, and learning rates."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

# Part of a phase in which the learning rate rises.
WARM_UP = 0.05

Match = Literal["outputs", "weights", "both"]
Trainable = Literal["attention", "all"]


@dataclass(frozen=True)
class Plan:
    """The steps of a run, and the images of each.

    steps: of the three phases. sizes: side of the images in pixels; those after the first are the third phase's, in
    turn. batch_size: images of a step in each process, fewer for larger images. lr: highest learning rate of the first
    phase, and of the others. intermediates: blocks whose tokens are learned as well as the final ones, by default all
    but the last. match: what the first phase learns, the outputs of attentions, their weights, or both; by default both
    of `hedgehog`, which was made for it, and otherwise outputs. Weights take time and memory quadratic in N. trainable:
    parameters that the other phases change, those of the new attentions, or all. bf16: autocast.
    """

    steps: tuple[int, int, int] = (1000, 1500, 500)
    sizes: tuple[int, ...] = (224,)
    batch_size: int = 16
    lr: tuple[float, float] = (1e-3, 1e-4)
    intermediates: tuple[int, ...] | None = None
    match: Match | None = None
    trainable: Trainable = "attention"
    seed: int = 0
    bf16: bool = False

    @property
    def ends(self) -> tuple[int, int, int]:
        """The steps at which the phases end."""
        return self.steps[0], sum(self.steps[:2]), sum(self.steps)

    def span(self, step: int) -> tuple[int, int]:
        """Return the first step of the phase of a step, and the one after its last."""
        end = next(end for end in self.ends if step < end)
        return max([0, *(before for before in self.ends if before < end)]), end

    def images(self, step: int) -> tuple[int, int]:
        """Return the size and the number of the images of a step in each process."""
        size = self.sizes[0]
        if step >= self.ends[1]:
            later = self.sizes[1:] or self.sizes
            size = later[(step - self.ends[1]) * len(later) // self.steps[2]]
        return size, max(1, round(self.batch_size * (self.sizes[0] / size) ** 2))

    def rate(self, step: int) -> float:
        """Return the learning rate of a step: a cosine after a short rise, in the first phase and in the others."""
        in_first = step < self.ends[0]
        start, end = (0, self.ends[0]) if in_first else (self.ends[0], self.ends[2])
        done, rise = (step - start) / (end - start), (step - start + 1) / (WARM_UP * (end - start))
        return self.lr[not in_first] * min(1.0, rise) * (0.01 + 0.99 * (1 + math.cos(math.pi * done)) / 2)


def split_steps(steps: Sequence[int], num_sizes: int) -> tuple[int, int, int]:
    """Return the steps of the phases, given as such, or as one number: a third, the rest, and with sizes a quarter."""
    if len(steps) == 1:
        first, last = steps[0] // 3, steps[0] // 4 if num_sizes > 1 else 0
        steps = first, steps[0] - first - last, last
    if len(steps) != 3 or min(steps) < 0 or sum(steps) < 1 or (steps[2] > 0) != (num_sizes > 1):
        raise ValueError(f"steps must be one number, or those of the phases, the third for larger sizes, got {steps}.")
    return steps[0], steps[1], steps[2]
