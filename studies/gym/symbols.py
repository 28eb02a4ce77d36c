"""Tasks on symbols and numbers: recall, mirror, rank, maze, nested lists."""

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from studies.gym.task import NOT_ASKED, Batch, Task, one_hot, shuffled, square_map


class Recall(Task):
    """Tokens with a key and a value lie at random places of a map, and tokens with only a key ask for its value.

    difficulty: number of pairs; as many tokens ask, each with the key of one pair. Other tokens are empty. At most half
        of the tokens.
    """

    asks: ClassVar[str] = "Which value belongs to my key?"
    measures: ClassVar[str] = "content-based look-up, sharp"
    source: ClassVar[str] = "multi-query associative recall, arXiv 2312.04927"

    num_classes = 8

    def __init__(self, num_tokens: int = 36, difficulty: int = 8) -> None:
        self.feat_size = square_map(num_tokens, 2)
        self.num_pairs, self.num_keys = difficulty, 2 * difficulty
        self.num_features = self.num_keys + self.num_classes

    def sample(self, rng: np.random.Generator, count: int) -> Batch:
        M, N = self.num_pairs, self.num_tokens
        rows = np.arange(count)[:, None]
        places = shuffled(rng, count, N)
        keys = shuffled(rng, count, self.num_keys)[:, :M]
        values = rng.integers(self.num_classes, size=(count, M))
        key, value, labels = (np.full((count, N), NOT_ASKED) for _ in range(3))
        key[rows, places[:, :M]], value[rows, places[:, :M]] = keys, values
        key[rows, places[:, M : 2 * M]], labels[rows, places[:, M : 2 * M]] = keys, values
        inputs = np.concatenate([one_hot(key, self.num_keys), one_hot(value, self.num_classes)], axis=-1)
        return Batch(inputs, labels)


class Mirror(Task):
    """The right half of a map is the mirror image of the left, with about half of its symbols changed.

    difficulty: number of different symbols.
    """

    asks: ClassVar[str] = "Is the token at my mirrored place equal to me?"
    measures: ClassVar[str] = "position-based look-up"
    source: ClassVar[str] = "mirrored arrangements, SVRT, Fleuret et al., PNAS 2011"

    num_classes = 2

    def __init__(self, num_tokens: int = 16, difficulty: int = 8) -> None:
        self.feat_size = square_map(num_tokens, 2, multiple=2)
        self.num_features = difficulty

    def sample(self, rng: np.random.Generator, count: int) -> Batch:
        side, symbols = self.feat_size[0], self.num_features
        left = rng.integers(symbols, size=(count, side, side // 2))
        equal = rng.integers(2, size=left.shape)
        other = (left + rng.integers(1, symbols, size=left.shape)) % symbols
        right = np.where(equal, left, other)[:, :, ::-1]
        symbol = np.concatenate([left, right], axis=2).reshape(count, -1)
        labels = np.concatenate([equal, equal[:, :, ::-1]], axis=2).reshape(count, -1)
        return Batch(one_hot(symbol, symbols), labels.astype(np.int64))


class Rank(Task):
    """Each token has a number, drawn around a mean that differs between examples.

    difficulty: spread of the means; its unit is the standard deviation of the numbers of one example. The larger it is,
        the less a number tells by itself.
    """

    asks: ClassVar[str] = "In which quarter of all numbers of this example is mine?"
    measures: ClassVar[str] = "global statistics"
    source: ClassVar[str] = "order statistics, a standard probe of set functions (arXiv 1810.00825)"

    num_classes, num_features = 4, 1

    def __init__(self, num_tokens: int = 36, difficulty: float = 2.0) -> None:
        self.feat_size = square_map(num_tokens, 2)
        self.spread = difficulty

    def hints(self, batch: Batch) -> np.ndarray:
        """Return the number of each token in bins."""
        return np.digitize(batch.inputs[..., 0], np.linspace(-3, 3, 121))

    def sample(self, rng: np.random.Generator, count: int) -> Batch:
        N = self.num_tokens
        numbers = rng.standard_normal((count, N)) + self.spread * rng.standard_normal((count, 1))
        rank = numbers.argsort(axis=1).argsort(axis=1)
        scaled = numbers / np.sqrt(1 + self.spread**2)
        return Batch(scaled[..., None].astype(np.float32), rank * self.num_classes // N)


class Maze(Task):
    """A map with random walls and one marked free cell.

    difficulty: share of walls. Below 0.2 and above 0.6, nearly all free cells have the same answer.

    Questions are asked at free cells. As many of them can be reached from the marked cell, by steps to the four
    neighbours, as cannot.
    """

    asks: ClassVar[str] = "Can I be reached from the marked cell?"
    measures: ClassVar[str] = "iterated local spread"
    source: ClassVar[str] = "connectivity, Minsky and Papert, Perceptrons, 1969"

    num_classes, num_features = 2, 3

    def __init__(self, num_tokens: int = 36, difficulty: float = 0.5) -> None:
        self.feat_size = square_map(num_tokens, 4)
        self.walls = difficulty

    def hints(self, batch: Batch) -> np.ndarray:
        """Return the position: cells at the border are harder to reach."""
        return np.broadcast_to(np.arange(self.num_tokens), batch.labels.shape)

    def sample(self, rng: np.random.Generator, count: int) -> Batch:
        inputs, labels = [], []
        while len(inputs) < count:
            free = rng.random((4 * count, *self.feat_size)) >= self.walls
            # One free cell of each map.
            flat = free.reshape(len(free), -1)
            place = (rng.random(flat.shape) * flat).argmax(axis=1)
            start = (np.arange(flat.shape[1]) == place[:, None]).reshape(free.shape) & free
            reached = flood(free, start)
            for cells, mark, inside in zip(free, start, reached, strict=True):
                yes, no = np.flatnonzero(inside & ~mark), np.flatnonzero(cells & ~inside)
                asked = min(len(yes), len(no))
                if asked < 4 or len(inputs) == count:
                    continue
                label = np.full(self.num_tokens, NOT_ASKED)
                label[rng.permutation(yes)[:asked]], label[rng.permutation(no)[:asked]] = 1, 0
                inputs.append(np.stack([~cells, cells, mark], axis=-1).reshape(-1, 3))
                labels.append(label)
        return Batch(np.stack(inputs).astype(np.float32), np.stack(labels))


def flood(free: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Return the free cells reached from start by steps to the four neighbours, on boolean maps `[..., Y, X]`."""
    reached = start
    while True:
        spread = reached.copy()
        spread[..., 1:, :] |= reached[..., :-1, :]
        spread[..., :-1, :] |= reached[..., 1:, :]
        spread[..., 1:] |= reached[..., :-1]
        spread[..., :-1] |= reached[..., 1:]
        spread &= free
        if (spread == reached).all():
            return reached
        reached = spread


class ListOps(Task):
    """A nested list such as `[max 3 [min 7 2 ] 5 ]`, one symbol per token, padded at its end.

    difficulty: deepest level of nesting; with 4, 6, 8 a list takes on average half of 128, 512, 2,048 tokens.

    Every operation is asked, including those of inner lists. Its name already makes some answers likelier. `med` is the
    median, and the greater of two middle values.
    """

    asks: ClassVar[str] = "What is the value of the list that I open?"
    measures: ClassVar[str] = "hierarchy, length"
    source: ClassVar[str] = "long-range arena, arXiv 2011.04006; ListOps, arXiv 1804.06028"

    OPERATIONS: ClassVar[dict[str, Callable[[list[int]], int]]] = {
        "max": max,
        "min": min,
        "med": lambda values: sorted(values)[len(values) // 2],
        "sm": lambda values: sum(values) % 10,
    }
    SYMBOLS = (*map(str, range(10)), *(f"[{name}" for name in OPERATIONS), "]")

    num_classes, num_features = 10, len(SYMBOLS)

    def __init__(self, num_tokens: int = 64, difficulty: int = 2) -> None:
        if num_tokens < 8:
            raise ValueError(f"num_tokens must be at least 8, got {num_tokens}.")
        self.feat_size = (num_tokens,)
        self.depth = difficulty

    def hints(self, batch: Batch) -> np.ndarray:
        """Return the symbol of each token, which is its operation where one is asked."""
        return batch.inputs.argmax(-1)

    def sample(self, rng: np.random.Generator, count: int) -> Batch:
        symbol, labels = (np.full((count, self.num_tokens), NOT_ASKED) for _ in range(2))
        for row in range(count):
            words, values, _ = self._draw_list(rng, self.depth, self.num_tokens)
            symbol[row, : len(words)], labels[row, : len(words)] = [self.SYMBOLS.index(word) for word in words], values
        return Batch(one_hot(symbol, self.num_features), labels)

    def _draw_list(self, rng: np.random.Generator, depth: int, room: int) -> tuple[list[str], list[int], int]:
        """Return a list of at most room symbols and depth levels.

        Returns its symbols, the value of the list that each symbol opens, and the value of the whole list.
        """
        name = str(rng.choice(list(self.OPERATIONS)))
        words, opened, arguments = [f"[{name}"], [NOT_ASKED], []
        for left in range(min(int(rng.integers(2, 6)), room - 2), 0, -1):
            # Leave a symbol for each following argument and for the bracket.
            space = room - len(words) - left
            if depth > 1 and space >= 4 and rng.random() < 0.6:
                inner, inner_values, value = self._draw_list(rng, depth - 1, space)
                words += inner
                opened += inner_values
            else:
                value = int(rng.integers(10))
                words.append(str(value))
                opened.append(NOT_ASKED)
            arguments.append(value)
        opened[0] = self.OPERATIONS[name](arguments)
        return [*words, "]"], [*opened, NOT_ASKED], opened[0]
