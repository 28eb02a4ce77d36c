"""How much of a teacher a student keeps, on pictures that were held out, and what a probe reads from their features."""

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from soft_vit.linearise import Backbone, UnlabelledImages, neighbour_agreement
from studies.real.data import PARTS, solar_cells, write_photographs
from studies.real.teacher import Decoder, saliency_of

SOURCES = ("cells", "stamps", "wallpapers")
BATCH = 8
# Saliency above this counts as salient.
THRESHOLD = 0.5
RIDGE, NEIGHBOURS = 1e-2, 5

Found = dict[str, float]


def photograph_of(name: str) -> str:
    """Return the path of a picture without the number of its tile."""
    return name.rpartition("_")[0]


def held_out(
    root: Path, backbone: Backbone, size: int, count: int, photographs: Collection[str] | None = None
) -> list[Tensor]:
    """Return up to count pictures of each source, `[n, 3, size, size]`, normalised, the same at each call.

    photographs: take those of training, as `photograph_of` names them, in place of held-out ones.
    """
    folder, found = write_photographs(root) / PARTS[photographs is None], []
    images = UnlabelledImages(folder, backbone.mean, backbone.std)
    entries = [entry for entry in images.entries if photographs is None or photograph_of(entry.name) in photographs]
    for source in SOURCES:
        images.entries = [entry for entry in entries if entry.name.rpartition("/")[2].startswith(source)]
        found.append(images.samples(count, size))
    return found


class Judge:
    """Compares students with a teacher on pictures of one size; what the teacher does is computed once.

    given: the size, count and photographs of `held_out`.
    """

    def __init__(self, root: Path, teacher: Backbone, decoder: Decoder, *given: Any) -> None:
        images = held_out(root, teacher, *given)
        self.images, self.counts, self.decoder = torch.cat(images), [len(part) for part in images], decoder
        self.tokens, self.maps = self.run(teacher)

    @torch.no_grad()
    def run(self, backbone: Backbone) -> tuple[Tensor, Tensor]:
        """Return final tokens `[n, P + N, C]` and saliency `[n, H, W]` of all pictures."""
        tokens = torch.cat([backbone(x) for x in self.images.split(BATCH)])
        size = (self.images.shape[-2], self.images.shape[-1])
        parts = tokens.split(BATCH)
        return tokens, torch.cat([saliency_of(x, self.decoder, backbone.feat_size(self.images), size) for x in parts])

    def compare(self, student: Backbone) -> Found:
        """Return the cosine of final tokens, the agreement of neighbours, and the overlap of salient pixels.

        cosine, of each source too: the mean over tokens. agreement: see `neighbour_agreement`, of means over the tokens
        of a picture's map. overlap: the intersection of pixels above one half, over their union, summed over pictures;
        1 where there are none.
        """
        tokens, maps = self.run(student)
        cosine = F.cosine_similarity(tokens, self.tokens, dim=-1).mean(1)
        prefix = tokens.shape[1] - math.prod(student.feat_size(self.images))
        a, b = maps > THRESHOLD, self.maps > THRESHOLD
        union = int((a | b).sum())
        of_sources = zip(SOURCES, cosine.split(self.counts), strict=True)
        return {
            "cosine": cosine.mean().item(),
            "agreement": neighbour_agreement(*(x[:, prefix:].mean(1) for x in (tokens, self.tokens))),
            "overlap": int((a & b).sum()) / union if union else 1.0,
        } | {f"cosine/{source}": values.mean().item() for source, values in of_sources}


@torch.no_grad()
def probe(root: Path, backbone: Backbone, size: int) -> Found:
    """Return the accuracy in percent with which defects are read from frozen features of test cells.

    A cell is defective if its grade is above one half. Features are the mean of patch tokens, normalised by the
    training cells'. ridge: a linear regression of -1 and 1. neighbours: a vote of the five nearest by cosine.
    """
    cells = solar_cells(root)
    images = UnlabelledImages(cells.paths[0].parent, backbone.mean, backbone.std)
    batches = images.samples(len(images), size).split(BATCH)
    features = [backbone(x)[:, -math.prod(backbone.feat_size(x)) :].mean(1) for x in batches]
    return read_defects(torch.cat(features), cells.grades > 0.5, cells.is_test)


def read_defects(features: Tensor, defects: np.ndarray, is_test: np.ndarray) -> Found:
    """Return what `probe` does, for features `[n, C]`."""
    test = torch.from_numpy(is_test)
    y = torch.from_numpy(defects).double() * 2 - 1
    x = features.double()
    x = (x - x[~test].mean(0)) / x[~test].std(0)
    a, b = x[~test], x[test]
    offset = y[~test].mean()
    gram = a.mT @ a + RIDGE * len(a) * torch.eye(a.shape[1], dtype=a.dtype)
    weights = torch.linalg.solve(gram, a.mT @ (y[~test] - offset))
    near = (F.normalize(b, dim=1) @ F.normalize(a, dim=1).mT).topk(NEIGHBOURS).indices
    found = {"ridge": b @ weights + offset, "neighbours": y[~test][near].mean(1)}
    right = {name: 100 * (score.sign() == y[test]).double().mean().item() for name, score in found.items()}
    intact = 100 * (y[test] < 0).double().mean().item()
    return right | {"majority": max(intact, 100 - intact)}
