"""Transforms of torchvision.transforms.v2, from configs."""

from torchvision.transforms import v2

from soft_vit.engine.errors import one_line

__all__ = ["build_transform"]


def build_transform(config: dict) -> v2.Transform:
    """The transform of `dict(type=NAME, ...)`, whose option `transforms` may hold further ones.

    Raises ValueError for an unknown name or option.
    """
    options = dict(config)
    name = options.pop("type", None)
    kind = getattr(v2, str(name), None)
    if not (isinstance(kind, type) and issubclass(kind, v2.Transform)):
        raise ValueError(f"transforms has the type {name!r}; choose a transform of torchvision.transforms.v2.")
    if "transforms" in options:
        options["transforms"] = [build_transform(inner) for inner in options["transforms"]]
    try:
        return kind(**options)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"torchvision.transforms.v2.{name} does not take {options} ({one_line(error)}); correct its options."
        ) from error
