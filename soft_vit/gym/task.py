"""What every task of the gym has in common.

Letters: B examples, N tokens, F features of a token, K classes.
"""

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import numpy as np

NOT_ASKED = -1
"""The label of a token that is not asked for an answer."""


class Batch(NamedTuple):
    """Examples: what each token is given, and what it is asked."""

    inputs: np.ndarray
    """float32 `[B, N, F]`."""
    labels: np.ndarray
    """int64 `[B, N]`: classes, `NOT_ASKED` (-1) at tokens without a question."""


class Task:
    """Examples drawn on demand, with questions that a token cannot answer by itself.

    A task is a function of its arguments and of a generator of random numbers alone.
    """

    asks: ClassVar[str]
    """The question, in one sentence."""
    measures: ClassVar[str]
    source: ClassVar[str]
    """Where such a task was published."""

    feat_size: tuple[int, ...]
    """The map (H, W) that the tokens fill, or the length (N,) of a sequence."""
    num_features: int
    num_classes: int

    @property
    def num_tokens(self) -> int:
        return int(np.prod(self.feat_size))

    @property
    def ceiling(self) -> float:
        """The best accuracy, in expectation, of a model whose tokens exchange nothing."""
        return 1 / self.num_classes

    def held_out(self) -> "Task":
        """The same task on examples that `sample` never draws, where those are drawn from a fixed stock."""
        return self

    def sample(self, rng: np.random.Generator, count: int) -> Batch:
        """Draw count examples."""
        raise NotImplementedError


def accuracy_alone(task: Task, seen: Callable[[Batch], np.ndarray], examples: int) -> float:
    """Accuracy of the likeliest answer to what a token sees, learned from half of the examples, tested on the others.

    seen: a batch to that part of each token which hints at answers, as integers `[B, N]`, not negative.
    """
    batch = task.sample(np.random.default_rng(0), examples)
    is_asked = batch.labels != NOT_ASKED
    hints, answers = seen(batch)[is_asked], batch.labels[is_asked]
    counts = np.zeros((hints.max() + 1, task.num_classes))
    learned = len(answers) // 2
    np.add.at(counts, (hints[:learned], answers[:learned]), 1)
    return float((counts.argmax(1)[hints[learned:]] == answers[learned:]).mean())


def one_hot(values: np.ndarray, count: int) -> np.ndarray:
    """Numbers below count as float32 vectors, zero for negative ones: `[...]` to `[..., count]`."""
    return (values[..., None] == np.arange(count)).astype(np.float32)


def shuffled(rng: np.random.Generator, count: int, size: int) -> np.ndarray:
    """A random order of size numbers for each of count examples: `[count, size]`."""
    return rng.random((count, size)).argsort(axis=1)
