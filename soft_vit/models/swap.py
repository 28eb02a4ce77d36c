"""Replace the attention of a model, keeping the weights that both have."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, cast

import timm
import torch
from timm.layers import Attention as TimmAttention
from timm.layers import AttentionRope, get_device_dtype
from timm.models import load_pretrained, register_model
from timm.models._features import FeatureGetterNet
from timm.models._input import update_model_args
from timm.models.beit import Attention as BeitAttention
from timm.models.eva import EvaAttention
from timm.models.naflexvit import NaFlexVit
from torch import Tensor, nn

from soft_vit.layers import attention_class
from soft_vit.layers.follow_map import follow_map
from soft_vit.layers.vit_attention import VIT_ATTENTIONS, ViTAttention, check_options
from soft_vit.models.eval_mode import eval_mode
from soft_vit.ops.flops import flop_counter
from soft_vit.weights.load import filter_weights

# The parts that each layer of an attention projects tokens to.
OLD_LAYERS = {"qkv": "qkv", "kv": "kv", "q": "q", "v": "v", "q_proj": "q", "k_proj": "k", "v_proj": "v", "qkvo": "qkvo"}
# Reformer's keys are its queries; Longformer's global projections start as the others, as published.
NEW_LAYERS = {
    "qkv": "qkv",
    "qkvo": "qkv",
    "kv": "kv",
    "qk": "q",
    "q": "q",
    "v": "v",
    "q_global": "q",
    "kv_global": "kv",
}

KNOWN = (TimmAttention, AttentionRope, EvaAttention, BeitAttention, ViTAttention)


@dataclass
class SwapReport:
    """The result of `swap_attention`: names of parameters of the model, and its cost before and after."""

    attention: str
    blocks: list[int]
    kept: list[str] = field(default_factory=list)
    """Parameters with values of the replaced attention; a new gate next to them is open."""
    new: list[str] = field(default_factory=list)
    """New parameters, with random values."""
    dropped: list[str] = field(default_factory=list)
    """Parameters of the replaced attention that the new one does not have."""
    params_before: int = 0
    params_after: int = 0
    flops_before: int = 0
    """Multiply-adds of one image of the model's size."""
    flops_after: int = 0

    def add(self, place: str, attn: nn.Module, kept: Collection[str], dropped: Iterable[str]) -> None:
        """Add an attention at a place such as "blocks.0.attn.", with its names of kept and dropped parameters."""
        names = [name for name, _ in attn.named_parameters()]
        self.kept += [place + name for name in names if name in kept]
        self.new += [place + name for name in names if name not in kept]
        self.dropped += [place + name for name in dropped]

    def __str__(self) -> str:
        return (
            f"{self.attention} in {len(self.blocks)} blocks: {len(self.kept)} parameters kept, {len(self.new)} new, "
            f"{len(self.dropped)} dropped; {self.params_before / 1e6:.2f} M -> {self.params_after / 1e6:.2f} M "
            f"parameters, {self.flops_before / 1e6:.2f} M -> {self.flops_after / 1e6:.2f} M FLOPs"
        )


def swap_attention(model: Any, kind: str, blocks: Iterable[int] | None = None, **options: Any) -> SwapReport:
    """Replace the attention of one of timm's ViTs by one of `soft_vit.layers.ATTENTIONS`, in place.

    For models with `blocks` behind a `patch_embed`, whose attention is softmax of products of queries and keys: timm's
    VisionTransformer (ViT, DeiT, DINO, SigLIP, with class token, registers or without), Eva with or without rotary
    embedding, and BEiT without relative positions. Other weights stay; queries, keys, values, the output layer
    and norms of queries and keys are kept if the new attention has them. Afterwards the attention follows the map of
    each image, of any size that the model takes.

    blocks: numbers of the blocks to change, negative ones from the end; by default all. options: of the
    attention type, and sr_ratio (default 2), the side of the window that a reduced token summarises.

    Raises ValueError for an unknown attention or option, or a model of another form, which stays unchanged.
    """
    check_options(kind, options)
    indices = _check_model(model, blocks)
    if isinstance(model, NaFlexVit) and attention_class(kind).fixed_feat_size:
        raise ValueError(f"kind must be without weights of one map for a model of images of many shapes, got {kind!r}.")
    report = SwapReport(kind, indices)
    before = _cost(model)
    replacements = {i: _replace(model, i, kind, options) for i in indices}
    previous = {i: model.blocks[i].attn for i in indices}
    for i, (attn, kept, dropped) in replacements.items():
        model.blocks[i].attn = attn
        report.add(f"blocks.{i}.attn.", attn, kept, dropped)
    model_class = type(model)
    try:
        follow_map(model)
        # Some attentions raise an error for a map that is too small only when they run.
        after = _cost(model)
    except Exception:
        for i, attn in previous.items():
            model.blocks[i].attn = attn
        model.__class__ = model_class
        raise
    if isinstance(model, NaFlexVit):
        # A mask of pairs is quadratic in the number of tokens; one of keys leaves the same result.
        model.use_key_only_attn_mask = True
    report.params_before, report.flops_before = before
    report.params_after, report.flops_after = after
    if hasattr(model, "pretrained_cfg"):
        _note_swap(model, {"kind": kind, "blocks": indices, **options})
    return report


def _note_swap(model: Any, note: dict[str, Any]) -> None:
    """Note a swap in what timm saves with the weights, from which `swapped_by_soft_vit` repeats it."""
    args = getattr(model, "_model_args", {})
    architecture = args.get("architecture", model.pretrained_cfg["architecture"])
    if len(note["blocks"]) == len(model.blocks):
        notes: Any = {name: value for name, value in note.items() if name != "blocks"}
    else:
        notes = [*_as_list(args.get("attn_layer")), note]
    update_model_args(model, architecture=architecture, attn_layer=notes)
    model.pretrained_cfg["architecture"] = "swapped_by_soft_vit"


def _as_list(notes: Any) -> list[Any]:
    return list(notes) if isinstance(notes, list) else [notes] if notes else []


@register_model
def swapped_by_soft_vit(
    pretrained: bool = False,
    architecture: str = "vit_tiny_patch16_224",
    attn_layer: Any = None,
    cache_dir: Any = None,
    features_only: bool = False,
    out_indices: Any = 3,
    **kwargs: Any,
) -> nn.Module:
    """Build a model whose attention was swapped, as timm's `save_for_hf` noted it.

    architecture: name of the model before. attn_layer: arguments of `swap_attention`, or a list of them, one for each
    swap; a string first is the attn_layer of the model before. kwargs: arguments of that model.
    """
    notes = _as_list(attn_layer or {"kind": "linear"})
    if isinstance(notes[0], str):
        kwargs["attn_layer"] = notes.pop(0)
    model: Any = timm.model_entrypoint(architecture)(pretrained=False, **kwargs)
    for note in notes:
        swap_attention(model, **note)
    if pretrained:
        load_pretrained(
            model,
            num_classes=0 if features_only else model.num_classes,
            in_chans=model.in_chans,
            filter_fn=cast(Any, filter_weights),
            cache_dir=cache_dir,
        )
    return FeatureGetterNet(model, out_indices=out_indices) if features_only else model


def _check_model(model: Any, blocks: Iterable[int] | None) -> list[int]:
    """Return the numbers of the blocks to change; ValueError where one of them, or the model, is of an unknown form."""
    found = getattr(model, "blocks", None)
    embed = getattr(model, "patch_embed", getattr(model, "embeds", None))
    if found is None or not hasattr(embed, "dynamic_feat_size") or not hasattr(model, "num_prefix_tokens"):
        raise ValueError(
            f"The model must be one of timm's ViTs, with patch_embed, num_prefix_tokens, and blocks that each have an "
            f"attention `attn`, got {type(model).__name__}."
        )
    indices = block_numbers(blocks, len(found))
    for i in indices:
        attn = getattr(found[i], "attn", None)
        if not isinstance(attn, KNOWN):
            raise ValueError(
                f"The attention of block {i} must be one of "
                f"{', '.join(f'{cls.__module__}.{cls.__name__}' for cls in KNOWN)}, got {type(attn).__name__}."
            )
        if isinstance(attn, ViTAttention):
            continue
        bias = getattr(attn, "relative_position_bias_table", None), getattr(model, "rel_pos_bias", None)
        obstacles = {
            "adds a bias of relative positions to its scores": any(part is not None for part in bias),
            "gates its result": getattr(attn, "gate", None) is not None,
            "normalises its result": not isinstance(getattr(attn, "norm", nn.Identity()), nn.Identity),
            "has heads that are not as wide as the model": attn.proj.in_features != attn.proj.out_features,
        }
        for what, applies in obstacles.items():
            if applies:
                raise ValueError(f"The attention of block {i} {what}, which other attentions cannot take over.")
    return indices


def block_numbers(blocks: Iterable[int] | None, count: int) -> list[int]:
    """Return the sorted numbers of some of count blocks, by default of all; ValueError unless they exist."""
    if isinstance(blocks, int):
        raise ValueError(f"blocks must be a list of numbers, such as [{blocks}], got {blocks}.")
    numbers = list(range(count)) if blocks is None else list(blocks)
    if any(not -count <= i < count for i in numbers):
        raise ValueError(f"blocks must be from 0 to {count - 1}, got {numbers}.")
    return sorted({i % count for i in numbers})


def _sizes(model: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the model's image size and map; of one that takes images of many shapes, those of its positions."""
    if hasattr(model, "patch_embed"):
        return tuple(model.patch_embed.img_size), tuple(model.patch_embed.grid_size)
    Y, X = model.embeds.pos_embed_grid_size or (14, 14)
    return (Y * model.embeds.patch_size[0], X * model.embeds.patch_size[1]), (Y, X)


def _cost(model: Any) -> tuple[int, int]:
    """Return the `cost` of one image of the model's size."""
    return cost(model, torch.zeros(1, model.in_chans, *_sizes(model)[0], **get_device_dtype(model)))


def cost(model: nn.Module, *args: Any, **kwargs: Any) -> tuple[int, int]:
    """Return the number of a model's parameters, and the multiply-adds of a forward with these arguments."""
    # torch's counter of modules cannot take a parameter as an argument without gradients (pooling by a latent).
    with eval_mode(model), torch.enable_grad(), flop_counter() as counter:
        model(*args, **kwargs)
    return sum(parameter.numel() for parameter in model.parameters()), counter.get_total_flops() // 2


def _replace(model: Any, i: int, kind: str, options: dict[str, Any]) -> tuple[ViTAttention, set[str], list[str]]:
    """Return the attention for block i, names of its parameters with old values, and names of dropped parameters."""
    old = model.blocks[i].attn
    source = projections(old)
    num_heads = old.block_heads if isinstance(old, ViTAttention) else old.num_heads
    projected = [name for name in source if name[:2] in ("q.", "k.", "v.")]
    attn = VIT_ATTENTIONS[kind](
        model.embed_dim,
        num_heads,
        qkv_bias=not projected or any(name.endswith(".bias") for name in projected),
        proj_bias="proj.bias" in source or not source,
        attn_drop=_rate(getattr(old, "attn_drop", 0.0)),
        proj_drop=_rate(getattr(old, "proj_drop", 0.0)),
        feat_size=_sizes(model)[1],
        **options,
        **get_device_dtype(model),
    )
    norms = {name: getattr(old, name, nn.Identity()) for name in ("q_norm", "k_norm")}
    attn.rotate_half = bool(getattr(old, "rotate_half", False))
    taken = [name for name in norms if attn.qk_norm and not (attn.key_is_query and name == "k_norm")]
    for name in taken:
        setattr(attn, name, norms[name])
    kept = {f"{name}.{part}" for name in taken for part, _ in norms[name].named_parameters()}
    from_old, used = keep_projections(attn, source)
    used |= kept
    kept |= from_old
    if getattr(model, "rope", None) is not None and not (attn.qk_norm and attn.qk_of_each_token):
        raise ValueError(
            f"{type(model).__name__} rotates the query and key of each token, which {kind!r} does not have."
        )
    old_names = {*source, *(f"{name}.{part}" for name, norm in norms.items() for part, _ in norm.named_parameters())}
    return attn.train(old.training), kept, sorted(old_names - used)


def keep_projections(attn: nn.Module, source: dict[str, Tensor]) -> tuple[set[str], set[str]]:
    """Copy values of source into attn's parameters; return the names of these, and of those in source."""
    kept, used = set(), set()
    with torch.no_grad():
        for name, parameter in attn.named_parameters():
            parts = _sources_of(name, source)
            values = [source[part] for part in parts]
            if name.startswith("qkvo.") and len(parts) == 3:
                values.append(_open_gate(name, parameter, source))
            if parts and (value := torch.cat(values)).shape == parameter.shape:
                parameter.copy_(value)
                kept.add(name)
                used |= set(parts)
    return kept, used


def _open_gate(name: str, qkvo: Tensor, source: dict[str, Tensor]) -> Tensor:
    """Return an open gate for the weight or bias of a layer qkvo; without a bias in source, keep its values."""
    has_bias = any(part in source for part in ("q.bias", "k.bias", "v.bias"))
    return torch.full_like(qkvo.chunk(4)[3], float(name == "qkvo.bias")) if has_bias else qkvo.chunk(4)[3]


def _rate(dropout: Any) -> float:
    return dropout.p if isinstance(dropout, nn.Dropout) else float(dropout)


def projections(attn: Any) -> dict[str, Tensor]:
    """Return the parameters of an attention, its projections split into q, k and v: "q.weight", "q.bias".

    Keys and values that groups of heads share are repeated for each head.
    """
    own = dict(attn.named_parameters())
    for name in own:
        if (groups := getattr(attn, "num_kv_groups", 1)) > 1 and name.startswith(("k_proj.", "v_proj.")):
            own[name] = own[name].unflatten(0, (-1, attn.head_dim)).repeat_interleave(groups, 0).flatten(0, 1)
    found: dict[str, Tensor] = {}
    # Other layers of these names, such as those of groups of channels, are no projections of all channels.
    layers = {
        layer: parts
        for layer, parts in OLD_LAYERS.items()
        if f"{layer}.weight" not in own or own[f"{layer}.weight"].ndim == 2
    }
    for layer, parts in layers.items():
        for kind in ("weight", "bias"):
            if f"{layer}.{kind}" in own:
                for part, value in zip(parts, own[f"{layer}.{kind}"].chunk(len(parts)), strict=True):
                    found[f"{part}.{kind}"] = value
    if "q_bias" in own:
        found |= {"q.bias": own["q_bias"], "k.bias": torch.zeros_like(own["q_bias"]), "v.bias": own["v_bias"]}
    elif any(name in found for name in ("q.bias", "v.bias")) and "k.weight" in found and "k.bias" not in found:
        found["k.bias"] = torch.zeros_like(found["v.bias"])
    taken = {*layers, "q_bias", "v_bias", "q_norm", "k_norm"}
    return found | {name: value for name, value in own.items() if name.partition(".")[0] not in taken}


def _sources_of(name: str, source: dict[str, Tensor]) -> list[str]:
    """Return the names in source that make up a parameter; an empty list if one of them is missing."""
    if name in source:
        return [name]
    layer, _, kind = name.partition(".")
    names = [f"{part}.{kind}" for part in NEW_LAYERS.get(layer, "")]
    if layer == "qkvo" and f"o.{kind}" in source:
        names.append(f"o.{kind}")
    return names if all(part in source for part in names) else []
