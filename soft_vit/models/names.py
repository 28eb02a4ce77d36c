"""Names of models, as timm knows them."""

import difflib

import timm

__all__ = ["require_known"]


def require_known(name: str) -> None:
    """ValueError, with the names that are near, for a model's name that timm does not know.

    A tag after a dot names weights, and what stands before a colon a place outside of timm: neither is looked at.
    """
    if ":" in name or timm.is_model(name):
        return
    alike = difflib.get_close_matches(name.split(".")[0], timm.list_models(), n=3)
    hint = f"did you mean {' or '.join(alike)}?" if alike else "choose a name of timm.list_models()."
    raise ValueError(f"timm has no model {name!r}; {hint}")
