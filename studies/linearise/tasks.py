"""Tasks for the teachers: images with questions at tokens that need other tokens.

Letters: B images, C channels, S the side of the map in tokens, N = S * S tokens, P prefix tokens (0 or 1).
"""

from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from soft_vit.data.demo.scenes import draw_scene
from soft_vit.data.demo.shapes import SPLITS, draw_tiles
from studies.gym.task import NOT_ASKED, one_hot, shuffled

HELD_OUT = 10**6
"""Random generators with this seed and above draw from images that no other generator draws."""


class Sample(NamedTuple):
    images: Tensor
    """float32 `[B, C, S * patch, S * patch]`."""
    labels: Tensor
    """int64 `[B, P + N]`: the answers that are judged; `NOT_ASKED` elsewhere."""
    targets: Tensor
    """int64 `[B, P + N]`: the answers that the teacher learns; `NOT_ASKED` elsewhere."""


class Task:
    """Questions with num_answers answers.

    side: of the map in tokens, for students. rate: highest one of the second phase, chosen for `performer`. overlaps:
    whether each token sees a window of two patches a side. tests: number of images that judge. plan: of the teacher's
    training, as (side, steps, batch size).
    """

    num_answers: ClassVar[int] = 8
    in_chans: ClassVar[int] = 3
    patch: ClassVar[int] = 1
    overlaps: ClassVar[bool] = False
    prefix: ClassVar[int] = 0
    side: ClassVar[int] = 12
    depth: ClassVar[int] = 6
    tests: ClassVar[int] = 128
    rate: ClassVar[float] = 1e-3
    plan: ClassVar[tuple[tuple[int, int, int], ...]]

    def sample(self, seed: int, count: int, side: int) -> Sample:
        """Return samples that depend on the arguments only; none with a seed below `HELD_OUT` has one above."""
        raise NotImplementedError


class TwoHop(Task):
    """Recall in two hops: a token asks with a key; a link leads from it to a second key, a store from that to a value.

    Each key, link and store is a token at a random place of an otherwise empty map. The teacher also learns the answers
    at links, one hop from theirs. Only the two hops are judged.
    """

    PAIRS = 8
    in_chans = 4 * PAIRS + 8
    plan = ((6, 700, 32), (12, 100, 16), (24, 24, 8))

    def sample(self, seed: int, count: int, side: int) -> Sample:
        rng, M = np.random.default_rng(seed), self.PAIRS
        rows, places = np.arange(count)[:, None], shuffled(rng, count, side * side)
        first, second = (shuffled(rng, count, 2 * M)[:, :M] for _ in range(2))
        values, order = rng.integers(self.num_answers, size=(count, M)), shuffled(rng, count, M)
        asks, links, stores = (places[:, i * M : (i + 1) * M] for i in range(3))
        answers = np.take_along_axis(values, order, 1)
        one, two, value, labels, targets = (np.full(places.shape, NOT_ASKED) for _ in range(5))
        one[rows, asks] = one[rows, links] = first
        two[rows, links], two[rows, stores] = np.take_along_axis(second, order, 1), second
        value[rows, stores] = values
        labels[rows, asks] = targets[rows, asks] = targets[rows, links] = answers
        tokens = [one_hot(one, 2 * M), one_hot(two, 2 * M), one_hot(value, self.num_answers)]
        images = torch.from_numpy(np.concatenate(tokens, -1)).mT.unflatten(2, (side, side))
        return Sample(images, torch.from_numpy(labels), torch.from_numpy(targets))


class Pictures(Task):
    """Drawn images, of which a fixed number exist for training."""

    draw: ClassVar[Callable[..., Any]]
    POOL = 6000

    def pictures(self, seed: int, count: int, side: int) -> tuple[list[Any], Tensor]:
        """Return random drawings, and their images in [-1, 1], `[B, 3, S * patch, S * patch]`."""
        if seed >= HELD_OUT:
            index = range(SPLITS["val"] + count * (seed - HELD_OUT), SPLITS["val"] + count * (seed - HELD_OUT + 1))
        else:
            index = np.random.default_rng(seed).permutation(self.POOL)[:count].tolist()
        drawn = [type(self).draw(0, i, side * self.patch) for i in index]
        return drawn, torch.from_numpy(np.stack([one.image for one in drawn])).permute(0, 3, 1, 2) / 127.5 - 1


class Tiles(Pictures):
    """The demo's tiles: the right colour of the tile with the cue's left colour, asked at the class token.

    The teacher also learns the answer at the white half of the cue.
    """

    draw = cache(draw_tiles)
    num_answers, prefix = 6, 1
    patch, side, depth = 6, 4, 4
    overlaps = True
    rate, tests = 3e-3, 512
    plan = ((4, 600, 32),)

    def sample(self, seed: int, count: int, side: int) -> Sample:
        drawn, images = self.pictures(seed, count, side)
        answers = torch.tensor([one.label for one in drawn])[:, None]
        # Colours of tiles have a dark channel, and the clutter is dull.
        white = F.max_pool2d(F.avg_pool2d(images.amin(1), self.patch // 2), 2).flatten(1) > 0.7
        labels = torch.cat([answers, torch.full((count, side * side), NOT_ASKED)], 1)
        return Sample(images, labels, torch.cat([answers, answers.where(white, NOT_ASKED)], 1))


class Scenes(Pictures):
    """Generated scenes with hidden patches, without labels: what is hidden?

    A fourth channel marks hidden patches. An answer says which of red, green and blue are above one half in the mean
    colour of a patch: masked image modelling (BEiT, arXiv 2106.08254) with a fixed tokenizer.
    """

    draw = cache(draw_scene)
    in_chans, patch, depth = 4, 8, 4
    POOL, HIDDEN = 1500, 0.4
    plan = ((12, 250, 16),)

    def sample(self, seed: int, count: int, side: int) -> Sample:
        _, images = self.pictures(seed, count, side)
        hidden = torch.from_numpy(np.random.default_rng(seed).random((count, 1, side, side)) < self.HIDDEN)
        colours = (F.avg_pool2d(images, self.patch) > 0) * torch.tensor([4, 2, 1])[:, None, None]
        labels = colours.sum(1).where(hidden[:, 0], NOT_ASKED).flatten(1)
        pixels = hidden.repeat_interleave(self.patch, 2).repeat_interleave(self.patch, 3)
        return Sample(torch.cat([images.masked_fill(pixels, 0), pixels.float()], 1), labels, labels)


TASKS: dict[str, Task] = {"two_hop": TwoHop(), "tiles": Tiles(), "scenes": Scenes()}
