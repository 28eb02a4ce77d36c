"""What weights are called in released code and here: there and back, for every list of released names."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import timm
import torch
from models.zoo.families import FAMILIES
from models.zoo.generated import lists, shapes
from released import released_shapes
from torch import Tensor, nn

from soft_vit.models import PYRAMID_SIZES, swap_attention

LISTS = {family: {name: shapes(family, name) for name in lists(family)} for family in FAMILIES}
# Other names that ViL's authors have, which test_families.py reads, and layers as convolutions, in a golden file.
del LISTS["vil2"]["vil2_tiny@192"], LISTS["vmamba"]["vmamba_tiny_s2l5@224"]
# Parts of SAM that are not the encoder's.
LISTS["efficientvit_sam"] = {
    name: {key: shape for key, shape in released.items() if key.startswith("image_encoder.")}
    for name, released in LISTS["efficientvit_sam"].items()
}
LISTS["soft"] = {f"soft_{size}": released_shapes(arguments["depths"]) for size, arguments in PYRAMID_SIZES.items()}
TINY = {family: row.tiny for family, row in FAMILIES.items()} | {"soft": "soft_tiny"}


def meta(name: str, **options) -> nn.Module:
    return timm.create_model(name, device="meta", **options)


def shapes_of(state: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in state.items()}


def identical(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(a[name] is b[name] for name in a)


@pytest.mark.parametrize("family", LISTS)
def test_every_list_of_released_names(family: str) -> None:
    """Names and shapes of every size, for models of which the names alone are known; other names are refused."""
    small = meta(TINY[family], **(FAMILIES[family].small if family in FAMILIES else {}))
    adapter = small.adapter
    with pytest.raises(ValueError, match=r"other\.weight"):
        small.to_released({**small.state_dict(), "other.weight": torch.zeros(3)})
    assert LISTS[family]
    for name, released in LISTS[family].items():
        state = {key: torch.empty(shape, device="meta") for key, shape in released.items()}
        heads = [key for key in state if "head." in key]
        own = adapter.from_released(state, heads)
        buffers = {key: x for key, x in state.items() if not adapter.from_released({key: x}, heads)}
        model = SimpleNamespace(state_dict=own.copy)
        again = replace(adapter, computed=lambda _, buffers=buffers: buffers).to_released(own, model)
        assert shapes_of(again) == released, name
        assert shapes_of(adapter.from_released(again, heads)) == shapes_of(own), name
        assert identical(adapter.from_released(own, own), own), name


@pytest.mark.parametrize("family", LISTS)
def test_released_weights_and_back(family: str) -> None:
    """Bit for bit, with the buffers of released files under their names; unchanged where they are converted already."""
    model, released = meta(TINY[family]), LISTS[family][TINY[family]]
    state = {key: torch.empty(shape, dtype=torch.uint8).random_() for key, shape in released.items()}
    own = model.from_released(state)
    again, buffers = model.to_released(own), model.adapter.computed(model)
    assert shapes_of(own) == shapes_of(model.state_dict())
    assert shapes_of(again) == released
    assert all(torch.equal(again[key], state[key]) for key in state if key not in buffers)
    assert not any(key in own for key in buffers)
    assert identical(model.from_released(own), own)


WITHOUT_NAMES = [
    ("linformer_pyramid_pico", {}, r"stages\.0\.blocks\.0\.attn"),
    ("soft_pico", {"reversible": True}, r"reversible\.0"),
    ("soft_pico", {"global_pool": "attn"}, "attn_pool"),
    ("linear_vit_tiny_patch16", {"depth": 1}, "cls_token"),
    ("inline_deit_tiny", {"depth": 1, "qk_norm": True}, r"attn\.q_norm"),
    ("inline_deit_tiny", {"depth": 1, "reg_tokens": 2}, "reg_token"),
]


@pytest.mark.parametrize(("name", "options", "parameter"), WITHOUT_NAMES, ids=str)
def test_parameters_without_released_names(name: str, options: dict, parameter: str) -> None:
    model = meta(name, **options)
    with pytest.raises(ValueError, match=parameter):
        model.to_released(model.state_dict())


def test_another_attention_has_no_released_names() -> None:
    model = timm.create_model("inline_deit_tiny", depth=1, img_size=64)
    swap_attention(model, "soft")
    with pytest.raises(ValueError, match=r"blocks\.0\.attn"):
        model.to_released(model.state_dict())


@pytest.mark.parametrize(("family", "name"), [("vig_h", "vig_h_tiny"), ("vmamba", "vmamba_tiny_s1l8")])
def test_older_names_of_blocks(family: str, name: str) -> None:
    """Files of the authors have two sets of names."""
    model, released = meta(name), LISTS[family][name]
    older = {r"\.op\.": ".self_attention.", r"\.norm\.(?=\w+$)": ".ln_1.", r"^patch_embed\.0": "patch_embed.proj"}
    older |= {r"^patch_embed\.2": "patch_embed.norm"}
    state = {key: torch.empty(shape, device="meta") for key, shape in released.items()}
    renamed = {}
    for key, value in state.items():
        for pattern, other in older.items():
            key = key if key.startswith("classifier") else re.sub(pattern, other, key)
        renamed[key] = value
    assert len(renamed.keys() - state.keys()) > len(state) / 2
    assert identical(model.from_released(renamed), model.from_released(state))
