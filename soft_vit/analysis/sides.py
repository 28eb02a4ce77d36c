"""Sizes of batches from a command line."""

__all__ = ["check_batch"]


def check_batch(batch_size: int) -> None:
    """ValueError for a batch without an image."""
    if batch_size < 1:
        raise ValueError(f"A batch of {batch_size} images cannot be measured; use at least 1.")
