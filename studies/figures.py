"""How tables of studies show figures."""

from collections.abc import Sequence
from statistics import fmean


def over_seeds(values: Sequence[float], digits: int = 1) -> str:
    """Return a mean with the range over seeds, or a single value."""
    shown = f"{fmean(values):.{digits}f}"
    return f"{shown} ({min(values):.{digits}f} to {max(values):.{digits}f})" if len(values) > 1 else shown
