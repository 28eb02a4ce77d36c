"""Sizes of images and of batches from a command line."""

from collections.abc import Sequence

__all__ = ["check_batch", "height_and_width"]


def check_batch(batch_size: int) -> None:
    """ValueError for a batch of no image."""
    if batch_size < 1:
        raise ValueError(f"A batch of {batch_size} images cannot be measured; use at least 1.")


def height_and_width(sides: Sequence[int]) -> tuple[int, int]:
    """Pixels of an image from one side, or from height and width; ValueError for anything else."""
    if len(sides) not in (1, 2) or min(sides) < 1:
        raise ValueError(f"The size {' '.join(map(str, sides))} is of no image; give one side, or height and width.")
    return sides[0], sides[-1]
