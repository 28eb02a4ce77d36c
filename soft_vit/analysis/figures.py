"""Figures of matplotlib without pyplot, which would choose a window system and keep figures for the whole process."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["new_figure"]


def new_figure(**options: Any) -> "Figure":
    """An empty figure; options are those of `matplotlib.figure.Figure`."""
    from matplotlib.figure import Figure

    return Figure(**options)
