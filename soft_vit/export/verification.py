"""An exported file against the model that it was made from."""

from collections.abc import Sequence

import torch

from soft_vit.engine.errors import UserError, one_line
from soft_vit.export.formats import Run
from soft_vit.export.subject import Subject

__all__ = ["BATCHES", "compare"]

# A single image, and a batch size that no graph was captured with.
BATCHES = (1, 5)


def compare(run: Run, subject: Subject, sizes: Sequence[tuple[int, int]]) -> dict[str, float]:
    """The largest absolute difference from the model, by the shape of the random images that both were given.

    sizes: (H, W) of the images; each is tried in all `BATCHES`. The difference is infinite where an output is
    missing, has another shape or is not finite. Raises UserError (a ValueError) for a file that refuses a batch.
    """
    generator = torch.Generator().manual_seed(0)
    errors = {}
    for height, width in sizes:
        for batch in BATCHES:
            images = torch.randn(batch, subject.input_size[0], height, width, generator=generator)
            with torch.no_grad():
                expected = subject.model(images)
            expected = [expected] if isinstance(expected, torch.Tensor) else list(expected)
            shape = f"{batch} x {height} x {width}"
            try:
                given = run(images)
            except Exception as error:
                # A graph refuses what it was not made for, and every runtime has its own types.
                raise UserError(
                    f"The file does not take a batch of {shape} ({one_line(error)}), so nothing was written; export "
                    "it for one size of images."
                ) from error
            errors[shape] = largest_difference(given, expected)
    return errors


def largest_difference(given: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """The largest absolute difference between outputs; infinite where shapes differ or a value is not finite."""
    if [output.shape for output in given] != [output.shape for output in expected]:
        return float("inf")
    differences = [(a - b).abs().max() for a, b in zip(given, expected, strict=True)]
    # NaN compares as smaller than any threshold.
    return float(torch.stack(differences).nan_to_num(nan=float("inf")).max())
