"""Walk the entries of a config."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from mmengine.config import Config
from mmengine.registry import Registry


def type_name(entry: Mapping[str, Any]) -> str:
    """Return the name of an entry's class, without a registry's scope or a module's path."""
    return str(entry.get("type", "")).rpartition(".")[2]


def class_of(entry: Mapping[str, Any], registry: Registry) -> type | None:
    """Return the class of an entry from a registry of MMEngine or of an OpenMMLab library, or None if it has none."""
    kind, scopes = entry.get("type", ""), ("", "mmpretrain.", "mmdet.", "mmseg.")
    return next((cls for scope in scopes if (cls := registry.get(scope + kind))), None)


def arguments_of(cls: type) -> tuple[set[str], bool]:
    """Return the arguments of a class and of bases that get its `**kwargs`, and whether these are all."""
    names: set[str] = set()
    for base in inspect.getmro(cls):
        parameters = inspect.signature(base.__init__).parameters
        names |= parameters.keys()
        if all(one.kind is not one.VAR_KEYWORD for one in parameters.values()):
            return names, True
    return names, False


def as_list(value: Any) -> list[dict[str, Any]]:
    """Return the entries of a value that may be one entry, a list of them or missing."""
    return [value] if isinstance(value, Mapping) else list(value or ())


def entries(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and the mapping of every entry of a config."""
    if isinstance(value, Mapping | Config):
        yield place, value
        inside = list(value.items())
    elif isinstance(value, list | tuple):
        inside = list(enumerate(value))
    else:
        return
    for key, inner in inside:
        yield from entries(inner, f"{place}.{key}" if place else str(key))


def timm_model(cfg: Config) -> dict[str, Any]:
    """Return the entry of a timm model, or {} for another model."""
    model = cfg.get("model") or {}
    return model if "model_name" in model else {}


def datasets_in(config: Any) -> Iterator[dict[str, Any]]:
    """Yield the entry of a data set, and those of data sets that it wraps."""
    if isinstance(config, dict):
        yield config
        for inner in (config.get("dataset"), *config.get("datasets", ())):
            yield from datasets_in(inner)


def datasets_of(cfg: Config, *splits: str) -> Iterator[dict[str, Any]]:
    """Yield the entries of the data sets of some splits, `train`, `val` and `test`, and of those that they wrap."""
    for split in splits:
        yield from datasets_in((cfg.get(f"{split}_dataloader") or {}).get("dataset"))
