"""The base of all tasks of the gym.

Letters: B examples, N tokens, F features of a token, K classes.
"""

from typing import ClassVar, NamedTuple

import numpy as np

NOT_ASKED = -1
"""The label of a token that is not asked for an answer."""
# The examples from which `Task.ceiling` learns. The seed is far from those of training and tests.
RULE_EXAMPLES = 2000
RULE_SEED = 10**8


class Batch(NamedTuple):
    """Examples: the features and the label of each token."""

    inputs: np.ndarray
    """float32 `[B, N, F]`."""
    labels: np.ndarray
    """int64 `[B, N]`: classes, or `NOT_ASKED` (-1) for tokens without a question."""


class Task:
    """Examples drawn on demand, with questions that a token cannot answer by itself.

    Examples depend only on the arguments of the task and on the random generator.
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

    def hints(self, batch: Batch) -> np.ndarray | None:
        """Return what makes some answers likelier for each token, as integers of at least 0 `[B, N]`, or None."""
        return None

    def ceiling(self, tests: Batch | None = None) -> float:
        """Return the best accuracy of a model without attention, in expectation or on the given tests.

        Such a model gives the likeliest answer to each hint, which is learned from examples other than the tests.
        """
        tests = tests or self.sample(np.random.default_rng(RULE_SEED + 1), RULE_EXAMPLES)
        test_hints = self.hints(tests)
        if test_hints is None:
            return 1 / self.num_classes
        learned = self.sample(np.random.default_rng(RULE_SEED), RULE_EXAMPLES)
        hints = self.hints(learned)
        counts = np.zeros((max(hints.max(), test_hints.max()) + 1, self.num_classes))
        is_asked, is_tested = learned.labels != NOT_ASKED, tests.labels != NOT_ASKED
        np.add.at(counts, (hints[is_asked], learned.labels[is_asked]), 1)
        return float((counts.argmax(1)[test_hints[is_tested]] == tests.labels[is_tested]).mean())

    def held_out(self) -> "Task":
        """Return the same task with held-out examples if its examples come from a fixed set, or else itself."""
        return self

    def sample(self, rng: np.random.Generator, count: int) -> Batch:
        """Draw count examples."""
        raise NotImplementedError


def square_map(num_tokens: int, least: int, multiple: int = 1) -> tuple[int, int]:
    """Return a square map (H, W). Raise ValueError unless its side is a multiple of `multiple`, at least `least`."""
    side = round(num_tokens**0.5)
    if side * side != num_tokens or side < least or side % multiple:
        even = " of an even number" if multiple == 2 else ""
        raise ValueError(f"num_tokens must be a square{even}, at least {least**2}, got {num_tokens}.")
    return side, side


def one_hot(values: np.ndarray, count: int) -> np.ndarray:
    """Return one-hot vectors of integers below count, zero for negative ones: `[...]` to float32 `[..., count]`."""
    return (values[..., None] == np.arange(count)).astype(np.float32)


def shuffled(rng: np.random.Generator, count: int, size: int) -> np.ndarray:
    """Return a random permutation of size numbers for each of count examples: `[count, size]`."""
    return rng.random((count, size)).argsort(axis=1)
