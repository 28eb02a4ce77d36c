"""The arguments of a pyramid: checked, and translated to those of its stages."""

from collections.abc import Sequence
from typing import Any

from timm.layers import to_2tuple

from soft_vit.layers import attention_class, attention_options
from soft_vit.ops.numerics import check_choice

STAGE4_KINDS = {"softmax": "softmax", "soft": "gaussian", "soft_plus": "soft_plus"}


class UnknownOptionError(TypeError, ValueError):
    """An option that neither a model nor any of its attentions has: the TypeError that timm expects of its models."""


def check_image_size(img_size: int | tuple[int, int], minimum: int = 1) -> tuple[int, int]:
    """Height and width from a side or both; ValueError unless there are two of at least `minimum` pixels."""
    size = tuple(to_2tuple(img_size))
    if len(size) != 2:
        raise ValueError(f"img_size={size} is no size of an image; give one side, or a height and a width.")
    if min(size) < minimum:
        raise ValueError(f"img_size={size[0]} x {size[1]} is too small; each side needs at least {minimum}.")
    return size


def check_stages(depths: Sequence[int], **arguments: Sequence[float]) -> None:
    """ValueError unless every argument has a positive entry for each stage, and the last stage a block."""
    for name, values in arguments.items():
        if len(values) != len(depths):
            raise ValueError(
                f"{name}={tuple(values)} has {len(values)} entries and depths={tuple(depths)} {len(depths)}; give one "
                f"for each stage."
            )
        if min(values) <= 0:
            raise ValueError(f"{name}={tuple(values)} leaves a stage without any; use positive numbers.")
    if min(depths) < 0 or depths[-1] < 1:
        raise ValueError(f"depths={tuple(depths)} leaves the last stage without a block; use at least one there.")


def rising_rates(rate: float, depths: Sequence[int]) -> list[list[float]]:
    """Drop-path rates of the blocks of every stage: from 0 at the first block to rate at the last, in equal steps."""
    steps = max(sum(depths) - 1, 1)
    return [[rate * (sum(depths[:i]) + j) / steps for j in range(depth)] for i, depth in enumerate(depths)]


def stage_attentions(attention: str | Sequence[str], stage4: str | None, num_stages: int) -> tuple[str, ...]:
    """The attention's name in every stage."""
    if isinstance(attention, str):
        stage4 = check_choice("stage4", stage4 or "softmax", tuple(STAGE4_KINDS))
        return (attention,) * (num_stages - 1) + (STAGE4_KINDS[stage4],)
    if len(attention) != num_stages or stage4 is not None:
        raise ValueError(
            f"attention={tuple(attention)!r} with stage4={stage4!r} is ambiguous; give one name and a stage4, or "
            f"{num_stages} names and no stage4."
        )
    return tuple(attention)


def choose_class_token(class_token: bool | None, last: str) -> bool:
    """Whether the last stage has a class token: as given, by default where its attention has a place for one.

    ValueError for one among the tokens of an attention that needs them on a full map. last: the attention's name.
    """
    needs_grid = attention_class(last).needs_grid
    if class_token and needs_grid:
        raise ValueError(
            f"The attention {last!r} of the last stage needs its tokens on a full map; use class_token=False and "
            f"global_pool='avg'."
        )
    return not needs_grid if class_token is None else class_token


def choose_bottleneck_img_size(
    bottleneck_img_size: int | tuple[int, int] | None, num_bottleneck: int | None, img_size: tuple[int, int]
) -> tuple[int, int] | None:
    """The size of the images on whose maps num_bottleneck tokens are counted: as given, by default img_size.

    None where their number follows from the map. ValueError for a size without num_bottleneck.
    """
    if num_bottleneck is not None:
        return check_image_size(bottleneck_img_size or img_size)
    if bottleneck_img_size is not None:
        raise ValueError(
            f"bottleneck_img_size={bottleneck_img_size} says where num_bottleneck tokens are counted, but "
            f"num_bottleneck is not given; give both, or neither."
        )
    return None


def split_attn_options(kinds: Sequence[str], options: dict[str, Any], defaults: dict[str, Any]) -> list[dict[str, Any]]:
    """For every stage the options, and before them the defaults, that its attention has; kinds: of all stages.

    UnknownOptionError for an option that none of them has; a default that none has is left out. The exact Gaussian
    attention that ends a normalised pyramid is normalised too, unless the options say otherwise.
    """
    known = [attention_options(attention_class(kind)) for kind in kinds]
    for name in options:
        if not any(name in accepted for accepted in known):
            choices = sorted(set().union(*known))
            raise UnknownOptionError(
                f"{name!r} is no option of this model or its attentions; the attentions have {', '.join(choices)}."
            )
    given = {**defaults, **options}
    stages = [{name: value for name, value in given.items() if name in accepted} for accepted in known]
    if kinds[-1] == "gaussian" and "soft_norm" in kinds:
        stages[-1].setdefault("normalize", True)
    return stages
