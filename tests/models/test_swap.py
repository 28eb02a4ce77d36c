"""`swap_attention`: softmax attention that is swapped in keeps a model's logits, and what the report says is so."""

import copy
from typing import Any

import numpy as np
import pytest
import timm
import torch
from timm.data import resolve_model_data_config
from torch import Tensor, nn

import soft_vit
from soft_vit.layers import ATTENTIONS
from soft_vit.probe.complexity import count_complexity

VIT = "vit_tiny_patch16_224"
SMALL: dict[str, Any] = {"depth": 2, "num_classes": 5, "img_size": 64, "embed_dim": 96, "num_heads": 3}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "ViT": (VIT, {}),
    "norms of queries and keys": (VIT, {"qk_norm": True}),
    "no biases": (VIT, {"qkv_bias": False, "proj_bias": False}),
    "one channel": (VIT, {"in_chans": 1}),
    "DeiT": ("deit_tiny_distilled_patch16_224", {}),
    "DeiT III": ("deit3_small_patch16_224", {}),
    "DINOv2 with registers": ("vit_small_patch14_reg4_dinov2", {"img_size": 56}),
    "SigLIP": ("vit_base_patch16_siglip_224", {}),
    "BEiT": ("beit_base_patch16_224", {"use_rel_pos_bias": False, "use_abs_pos_emb": True}),
    "EVA-02": ("eva02_tiny_patch14_224", {"img_size": 56}),
    "DINOv3": ("vit_small_patch16_dinov3", {}),
    "mixed rotary embedding": ("vit_small_patch16_rope_mixed_224", {}),
    "grouped queries": ("vit_base_patch16_sapiens2", {"num_heads": 6, "num_kv_heads": 2}),
}


def create(name: str, options: dict[str, Any]) -> Any:
    """A model in float64, its parameters far from the start, where much is zero."""
    torch.manual_seed(0)
    model = timm.create_model(name, **{**SMALL, **options}).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def vit(**options: Any) -> Any:
    return create(VIT, options)


def images(model: Any, batch: int = 2) -> Tensor:
    size = (batch, model.in_chans, *model.patch_embed.img_size)
    return torch.randn(size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def attention_parameters(model: Any) -> dict[str, nn.Parameter]:
    return {name: value for name, value in model.named_parameters() if ".attn." in name}


@pytest.mark.parametrize(("name", "options"), MODELS.values(), ids=MODELS)
def test_softmax_keeps_the_logits(name: str, options: dict[str, Any]) -> None:
    """Also on the way back from another kind, which has the same projections."""
    model = create(name, options)
    expected = model(images(model))
    for kind in ("softmax", "linear", "softmax"):
        report = soft_vit.swap_attention(model, kind)
        assert (report.new, report.dropped) == ([], [])
        logits = model(images(model))
        assert ((logits - expected).norm() <= 1e-12 * expected.norm()) == (kind == "softmax")
    copied = copy.deepcopy(model)
    assert torch.equal(copied(images(model)), logits)
    model.train()(images(model)).sum().backward()
    assert all(parameter.grad is not None for parameter in attention_parameters(model).values())


# Their projections are those of the block, as of `linear`.
PLAIN = ("softmax_one", "performer", "efficient", "sima", "cosformer", "focused", "local", "atrous", "sparse")
PLAIN += ("bigbird", "agent", "nystrom", "skyformer", "inline", "mila", "reformer", "vq")


every_kind = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind in PLAIN)) for kind in ATTENTIONS]
)


@every_kind
def test_report(kind: str) -> None:
    """Its figures are those of `count_complexity`."""
    model = vit(qk_norm=True, depth=1)
    plain = copy.deepcopy(model)
    report = soft_vit.swap_attention(model, kind)
    if kind in ("softmax", "soft", "linear"):
        assert f"{len(report.kept)} parameters kept" in str(report)
        before, after = (count_complexity(form, (1, 3, 64, 64)) for form in (plain, model))
        assert (report.params_before, report.flops_before) == (before.params, before.macs)
        assert (report.params_after, report.flops_after) == (after.params, after.macs)
    assert (report.attention, report.blocks) == (kind, [0])
    assert isinstance(model.blocks[0].attn, ATTENTIONS[kind])
    # Also where all weights are of another dtype.
    assert copy.deepcopy(model).bfloat16()(images(model).bfloat16()).isfinite().all()
    assert sorted(report.kept + report.new) == sorted(attention_parameters(model))
    old = torch.cat([value.flatten() for value in attention_parameters(plain).values()]).unique()
    for name in report.kept:
        # Each value is one that was there; the last quarter of qkvo is a gate.
        value = model.get_parameter(name)
        value = value[: len(value) * 3 // 4] if ".qkvo." in name else value
        nearest = torch.searchsorted(old, value.detach()).clamp(max=len(old) - 1)
        assert torch.equal(old[nearest], value), name
    for name, parameter in model.named_parameters():
        if ".attn." not in name:
            assert torch.equal(parameter, plain.get_parameter(name)), name
    expected = {name: value.detach().clone() for name, value in attention_parameters(model).items()}
    # The same kind keeps all; another drops what is of this kind alone, and has the heads of the model.
    again = soft_vit.swap_attention(model, kind)
    assert (again.new, again.dropped) == ([], [])
    for name, parameter in attention_parameters(model).items():
        assert torch.equal(parameter, expected[name]), name
    report = soft_vit.swap_attention(model, "softmax")
    assert (model.blocks[0].attn.num_heads, model.blocks[0].attn.head_dim) == (3, 32)
    assert not {*report.kept, *report.new} - attention_parameters(model).keys()


@every_kind
def test_a_rotary_embedding_reaches_queries_and_keys(kind: str) -> None:
    name, options = MODELS["EVA-02"]
    model = create(name, {**options, "depth": 1})
    if ATTENTIONS[kind].traits.qk != "tokens":
        with pytest.raises(ValueError, match="rotates the query and key of each token"):
            soft_vit.swap_attention(model, kind)
        return
    soft_vit.swap_attention(model, kind)
    logits = model(images(model))
    model.rope = None
    # A Gaussian kernel of wide heads is flat.
    assert (model(images(model)) - logits).norm() > 1e-6 * logits.norm()


SAVED = [
    ("ViT", [("soft", {"blocks": [1], "max_bottleneck": (2, 2), "sr_ratio": 1}), ("local", {"blocks": [-2]})], True),
    ("attn_layer", [("local", {"blocks": np.array([0])})], False),
    ("BEiT", [("linformer", {}), ("softmax", {})], False),
    ("EVA-02", [("local", {"kernel_size": 3})], True),
    ("own", [("linformer", {})], True),
]


@pytest.mark.parametrize(("name", "swaps", "resized"), SAVED)
def test_a_saved_model_comes_back_with_its_attention(name: str, swaps: list, resized: bool, tmp_path) -> None:
    """From timm's folder, which notes the swaps, at the size that was set; as features, and at another size."""
    others = {
        "attn_layer": (VIT, {"attn_layer": soft_vit.attn_layer("performer", num_features=8)}),
        "own": ("linear_vit_tiny_patch16", {}),
    }
    model = create(*{**MODELS, **others}[name]).float()
    for kind, options in swaps:
        soft_vit.swap_attention(model, kind, **options)
    if resized:
        side = 5 * model.patch_embed.patch_size[0]
        model.set_input_size((side, side + model.patch_embed.patch_size[0]))
    timm.models.save_for_hf(model, tmp_path)
    # Another process has not made this layer.
    timm.models.vision_transformer.ATTN_LAYERS.pop("soft_vit.attn_layer('performer', num_features=8)", None)
    x = images(model).float()
    for again in range(2):
        loaded = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
        assert torch.equal(loaded(x), model(x)), again
        timm.models.save_for_hf(loaded, tmp_path)
    other = {"num_classes": 3, "features_only": True, "out_indices": 1}
    loaded = timm.create_model(f"local-dir:{tmp_path}", pretrained=True, **other).eval()
    assert resolve_model_data_config(loaded)["mean"] == model.pretrained_cfg["mean"]
    torch.testing.assert_close(loaded(x)[-1], model.forward_intermediates(x, [1], intermediates_only=True)[0])
    side = 3 * model.patch_embed.patch_size[0]
    loaded = timm.create_model(f"local-dir:{tmp_path}", pretrained=True, img_size=(side, side)).eval()
    model.set_input_size((side, side))
    torch.testing.assert_close(loaded(x[..., :side, :side]), model(x[..., :side, :side]))


def test_costs_are_counted_when_they_are_read() -> None:
    """On copies without values and gradients, of the model as it was, whatever becomes of it."""
    model, seen = vit(depth=1), []
    model.register_forward_pre_hook(lambda _, args: seen.append((args[0].device.type, torch.is_grad_enabled())))
    report = soft_vit.swap_attention(model, "linear")
    assert not seen
    soft_vit.swap_attention(model, "rala")
    assert report.params_before == report.params_after < sum(value.numel() for value in model.parameters())
    assert seen == [("meta", False)] * 2
    assert not any(value.is_meta for value in model.parameters())


def test_a_second_swap_keeps_the_parts_that_both_declare() -> None:
    """The queries of Reformer, the queries and keys of MILA, and gates."""
    for first, second, layer in (("reformer", "soft", "q"), ("softmax", "mila", "qk"), ("rala", "polaformer", "g")):
        model = vit(depth=1)
        soft_vit.swap_attention(model, first)
        assert f"blocks.0.attn.{layer}.weight" in soft_vit.swap_attention(model, second).kept, first


def test_some_blocks() -> None:
    model = create(VIT, {"depth": 4})
    untouched = model.blocks[1].attn
    assert soft_vit.swap_attention(model, "local", blocks=[-1, 0, 3], kernel_size=3).blocks == [0, 3]
    assert model.blocks[1].attn is untouched
    assert [type(block.attn).__name__ for block in model.blocks][::3] == ["ViTLocalAttention"] * 2
    assert model.blocks[3].attn.kernel_size == 3


def test_mode_dtype_and_rates_stay() -> None:
    model = vit(attn_drop_rate=0.1, proj_drop_rate=0.2).train().bfloat16()
    model.blocks[1].eval().half()
    soft_vit.swap_attention(model, "softmax")
    attn, frozen = model.blocks[0].attn, model.blocks[1]
    assert (model.training, attn.training, frozen.training, frozen.attn.training) == (True, True, False, False)
    assert [{x.dtype for x in block.parameters()} for block in model.blocks] == [{torch.bfloat16}, {torch.half}]
    assert (attn.attn_drop, attn.proj_drop.p) == (0.1, 0.2)


def test_hybrids_follow_the_map_of_their_backbone() -> None:
    """Also at sizes that its stride does not divide, where timm's own count is rounded down, and in a compiled one."""
    model = timm.create_model("vit_small_resnet26d_224", dynamic_img_size=True, depth=1, num_classes=5).eval()
    soft_vit.swap_attention(torch.compile(model), "local")
    seen = []
    model.blocks[0].attn.register_forward_pre_hook(lambda _, args, kwargs: seen.append(kwargs), with_kwargs=True)
    assert model(torch.zeros(1, 3, 176, 240)).shape == (1, 5)
    assert seen[0]["attn_mask"].grid == (6, 8)


REFUSED = [
    (VIT, SMALL, "linnear", {}, "linnear"),
    (VIT, SMALL, "linear", {"blocks": [0, 2]}, "0 to 1"),
    (VIT, SMALL, "local", {"kernel_size": 2}, "kernel_size=2"),
    # Found when the model is to follow maps.
    (VIT, {**SMALL, "patch_drop_rate": 0.5}, "local", {}, "patch_drop_rate"),
    (VIT, {**SMALL, "scale_attn_norm": True}, "linear", {}, "normalises its result"),
    ("soft_pico", {}, "linear", {}, "patch_embed"),
    ("swin_tiny_patch4_window7_224", {}, "linear", {}, "patch_embed"),
    ("beit_base_patch16_224", SMALL, "linear", {}, "relative positions"),
    ("eva02_tiny_patch14_224", {**SMALL, "img_size": 56}, "hydra", {}, "rotates the query"),
]


@pytest.mark.parametrize(("name", "options", "kind", "swap", "words"), REFUSED)
def test_a_refusal_changes_nothing(name: str, options: dict, kind: str, swap: dict, words: str) -> None:
    model = timm.create_model(name, **options)
    cls, modules, state = type(model), list(model.modules()), copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=words):
        soft_vit.swap_attention(model, kind, **swap)
    assert (type(model), list(model.modules())) == (cls, modules)
    assert all(module.training for module in modules)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["EVA-02", "ViT"])
def test_compiled_and_exported(name: str) -> None:
    torch._dynamo.reset()
    model = create(MODELS[name][0], MODELS[name][1])
    soft_vit.swap_attention(model, "local")
    x = images(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), model(x))
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=64)},))
    x = images(model, batch=5)
    torch.testing.assert_close(program.module()(x), model(x))
