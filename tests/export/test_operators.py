"""What is exported has Core ATen operators alone, which every runtime translates."""

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from attention_cases import CASES, make
from captured_models import CASES as PYRAMIDS
from captured_models import create
from export.decomposed import exported
from models.zoo.families import SMALL
from torch import nn
from torch.testing import assert_close

from soft_vit.export.model import Half

# What formulas need beyond that, as docs/export.md says, by a word of the case.
CHOLESKY = {"aten.linalg_cholesky_ex.default", "aten.cholesky_solve.default"}
NEEDED = {"reformer": {"aten.sort.stable"}, "skyformer": CHOLESKY, "cholesky": CHOLESKY}
NEEDED["efficientvit"] = {"aten.upsample_bicubic2d.default"}
# What torch.export leaves out or replaces, as it replaces operators that write to their argument.
REPLACED = ("alias", "copy", "lift_fresh")

ATTENTION_CASES = [case for case in CASES if "contract" in case.uses or "inverse" in case.options]
ATTENTION_CASES = [case for case in ATTENTION_CASES if case.kind != "nystrom" or "inverse" not in case.options]


def rare(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return what few runtimes translate; empty for Core ATen without factors of terms or splits into one part."""
    name = str(operator).replace("_.", ".")
    _, packet, overload = name.split(".")
    if packet in REPLACED:
        return ""
    # _local_scalar_dense reads a number, which a graph cannot. Core ML lacks the others.
    core = torch.Tag.core in getattr(getattr(torch.ops.aten, packet), overload).tags
    if not core or packet in ("_local_scalar_dense", "bitwise_or", "fmod"):
        return name
    if packet == "split_with_sizes" and len(args[1]) == 1:
        return f"{name} into one part"
    return ", ".join(f"{name} {factor}" for factor in ("alpha", "beta") if kwargs.get(factor, 1) != 1)


def rare_operators(run: Callable[..., Any], *shapes: tuple[int, ...]) -> set[str]:
    """Return the rare operators of run as it is exported, for tensors of these shapes; assert that it equals eager."""
    found: set[str] = set()
    # Small tensors are computed faster than their shapes are inferred.
    tensors = [torch.randn(shape) for shape in shapes]
    with exported(lambda operator, args, kwargs, result: found.add(rare(operator, args, kwargs))):
        result = run(*tensors)
    with torch.no_grad():
        assert_close(result, run(*tensors), rtol=1e-3, atol=1e-4)
    return found - {""}


def needed(case: str) -> set[str]:
    return next((operators for word, operators in NEEDED.items() if word in case), set())


@pytest.mark.parametrize("case", ATTENTION_CASES, ids=str)
def test_every_attention(case):
    attention = make(case, (6, 5), dtype=torch.float32)
    assert rare_operators(lambda x: attention(x, (6, 5)), (2, 30, 12)) == needed(str(case))


# Rows whose parts other rows have, too.
SLOW = ("flatten_pvt", "flatten_swin", "pola_pvt", "pola_swin", "h_vit3", "mavit", "inline_pvt", "vig", "vrwkv")
SLOW += ("vig_h", "vmamba", "vil", "vil2", "vrwkv6", "ca_deit", "soft_norm", "cholesky", "reversible")
SLOW += ("capped bottleneck", "random sampling", "fused stages")
MODELS = {family: {"model_name": name, **options} for family, (name, options) in SMALL.items()} | PYRAMIDS
MARKED = [pytest.param(family, marks=[pytest.mark.slow] * (family in SLOW)) for family in MODELS]


def small_model(family: str) -> nn.Module:
    options = {"num_classes": 7, "img_size": 64, **MODELS[family]}
    return (create(options) if family in PYRAMIDS else timm.create_model(**options)).eval()


@pytest.mark.parametrize("family", MARKED)
def test_every_family(family):
    assert rare_operators(small_model(family), (2, 3, 64, 64)) == needed(family)


# Half precision, where every operator rounds its result, as a runtime on a CPU does not.


BOUNDS = {torch.float16: 1e-2, torch.bfloat16: 5e-2}


def sharpen(model: nn.Module) -> None:
    """Multiply the weights of queries and keys by 16."""
    for module in model.modules():
        for layer, parts in getattr(module, "projections", {}).items():
            weights = [weight for weight in getattr(module, layer).parameters() if len(weight) % len(parts) == 0]
            for part, *of_part in zip(parts, *(weight.chunk(len(parts)) for weight in weights), strict=False):
                for weight in of_part:
                    weight.mul_(16 if part in "qk" else 1)


def half_logits(model, x, dtype):
    """Return the logits of a model in half precision, and assert that no operator overflows."""
    overflowed: list[str] = []

    def note(operator, args, kwargs, result):
        tensors = result if isinstance(result, tuple | list) else [result]
        halves = [x for x in tensors if isinstance(x, torch.Tensor) and x.dtype in BOUNDS and x.numel()]
        # Minus infinity is a mask.
        if any(x.isnan().any() or x.isposinf().any() for x in halves):
            overflowed.append(str(operator))

    half = Half(model).model.to(dtype)
    with exported(note):
        logits = half(x.to(dtype))
    assert not overflowed
    return logits


QUICK16 = ("soft", "mila", "flatten_pvt")
HALF = [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK16)) for name in ("soft", "soft_norm", *SMALL)]


@pytest.mark.parametrize("family", HALF)
@torch.no_grad()
def test_half_precision_holds_where_attention_is_sharp(family):
    """Weights far from zero: an initial layer scale of 1e-6 is no normal number of fp16."""
    model = small_model(family)
    for parameter in model.parameters():
        parameter.add_(0.05 * torch.randn_like(parameter))
    sharpen(model)
    x = torch.randn(2, 3, 64, 64)
    expected = model(x)
    for dtype, bound in BOUNDS.items():
        assert (half_logits(model, x, dtype) - expected).abs().max() <= bound * expected.abs().max(), dtype


@torch.no_grad()
def test_norms_in_half_precision_take_large_tokens():
    """Squares of tokens above 256 are no numbers of fp16."""
    model, x = small_model("vig"), torch.randn(2, 3, 64, 64)
    model.pos_embed.copy_(400 * torch.randn_like(model.pos_embed))
    expected = model(x)
    assert (half_logits(model, x, torch.float16) - expected).abs().max() <= 1e-2 * expected.abs().max()
