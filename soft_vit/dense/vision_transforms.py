"""Transforms of torchvision.transforms.v2, from configs."""

from torchvision.transforms import v2


def build_transform(config: dict) -> v2.Transform:
    """Return the transform of `dict(type=NAME, ...)`, whose option `transforms` may hold further ones."""
    options = dict(config)
    name = options.pop("type", None)
    kind = getattr(v2, str(name), None)
    if not (isinstance(kind, type) and issubclass(kind, v2.Transform)):
        raise ValueError(f"transforms must be of torchvision.transforms.v2, got {name!r}.")
    if "transforms" in options:
        options["transforms"] = [build_transform(inner) for inner in options["transforms"]]
    return kind(**options)
