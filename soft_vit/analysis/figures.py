"""Figures of matplotlib without pyplot, which would choose a window system and keep figures for the whole process."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["new_figure"]


def new_figure(**options: Any) -> "Figure":
    """An empty figure; options are those of `matplotlib.figure.Figure`.

    Raises ModuleNotFoundError, in one sentence, where matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        sentence = "Drawing needs matplotlib; pip install 'soft_vit[analysis]' brings it."
        raise ModuleNotFoundError(sentence, name=error.name) from error
    return Figure(**options)
