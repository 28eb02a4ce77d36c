"""Replace the attention of a model, keeping the weights that both have."""

import copy
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import timm
import torch
from timm.layers import Attention as TimmAttention
from timm.layers import AttentionRope, get_device_dtype
from timm.models import load_pretrained, register_model, resolve_pretrained_cfg
from timm.models._features import FeatureGetterNet
from timm.models._input import update_model_args
from timm.models.beit import Attention as BeitAttention
from timm.models.eva import EvaAttention
from timm.models.naflexvit import NaFlexVit
from torch import Tensor, nn

from soft_vit.layers import Attention, attention_class
from soft_vit.layers.grid_vit import follow_grid
from soft_vit.layers.vit_attention import ViTAttention, check_options, vit_attention
from soft_vit.models.base import add_img_size_hooks
from soft_vit.models.eval_mode import eval_mode
from soft_vit.ops.flops import flop_counter
from soft_vit.weights.build import SOURCES, complete_spec, pretrained_weights
from soft_vit.weights.load import SWAPPED, checkpoint_filter_fn, load_into
from soft_vit.weights.spec import ModelSpec

KNOWN = (TimmAttention, AttentionRope, EvaAttention, BeitAttention)
# The projections of these, and of transformers' attentions.
PROJECTIONS = {"qkv": "qkv", "q_proj": "q", "k_proj": "k", "v_proj": "v"}


def meta_copy(model: nn.Module) -> Any:
    """Return a copy on the meta device, which has shapes but no values, and takes no gradients."""
    memo: dict[int, Any] = {id(x): torch.empty_like(x, device="meta") for x in model.buffers()}
    memo |= {id(x): nn.Parameter(torch.empty_like(x, device="meta"), False) for x in model.parameters()}
    return copy.deepcopy(model, memo)


def run_image(model: Any) -> Any:
    """Run one of timm's ViTs for one image of its size."""
    return model(torch.zeros(1, model.in_chans, *_sizes(model)[0], **get_device_dtype(model)))


def cost(model: nn.Module, run: Callable[[Any], Any]) -> tuple[int, int]:
    """Return the number of a model's parameters, and the multiply-adds of run(model)."""
    with eval_mode(model), torch.no_grad(), flop_counter() as counter:
        run(model)
    return sum(parameter.numel() for parameter in model.parameters()), counter.get_total_flops() // 2


@dataclass
class SwapReport:
    """The result of a swap: names of parameters of the model, and its cost before and after.

    Costs are counted when they are read: parameters, and multiply-adds of one image of the model's size.
    """

    attention: str
    blocks: list[int]
    kept: list[str] = field(default_factory=list)
    """Parameters with values of the replaced attention; a new gate next to them is open."""
    new: list[str] = field(default_factory=list)
    """New parameters, with random values."""
    dropped: list[str] = field(default_factory=list)
    """Parameters of the replaced attention that the new one does not have."""
    forms: tuple[nn.Module, ...] = field(default=(), repr=False)
    """The model before and after, on the meta device."""
    run: Callable[[Any], Any] = field(default=run_image, repr=False)
    """Runs a form for one image."""

    params_before = property(lambda self: self._costs[0][0])
    flops_before = property(lambda self: self._costs[0][1])
    params_after = property(lambda self: self._costs[1][0])
    flops_after = property(lambda self: self._costs[1][1])

    @cached_property
    def _costs(self) -> list[tuple[int, int]]:
        return [cost(form, self.run) for form in self.forms]

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
    each image, of any size that the model takes. Its parameters take gradients, also in a frozen model.

    blocks: numbers of the blocks to change, negative ones from the end; by default all. options: of the
    attention type, and sr_ratio (default 2), the side of the window that a reduced token summarises.

    Raises ValueError for an unknown attention or option, or a model of another form, which stays unchanged.
    """
    check_options(kind, options)
    indices = _check_model(model, blocks)
    if isinstance(model, NaFlexVit) and attention_class(kind).traits.fixed_grid:
        raise ValueError(f"kind must be without weights of one map for a model of images of many shapes, got {kind!r}.")
    replacements = {i: _replace(model, i, kind, options) for i in indices}
    follow_grid(model, [attn for attn, *_ in replacements.values()])
    report, before = SwapReport(kind, indices), meta_copy(model)
    for i, (attn, kept, dropped) in replacements.items():
        model.blocks[i].attn = attn
        report.add(f"blocks.{i}.attn.", attn, kept, dropped)
    if isinstance(model, NaFlexVit):
        # A mask of pairs is quadratic in the number of tokens; one of keys leaves the same result.
        model.use_key_only_attn_mask = True
    report.forms = before, meta_copy(model)
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
    if architecture == model.pretrained_cfg["architecture"]:
        model.pretrained_cfg["architecture"] = SWAPPED
        if hasattr(model, "patch_embed"):
            add_img_size_hooks(model)


def _as_list(notes: Any) -> list[Any]:
    return list(notes) if isinstance(notes, list) else [notes] if notes else []


@register_model
def swapped_by_soft_vit(
    pretrained: bool = False,
    pretrained_cfg: Any = None,
    pretrained_cfg_overlay: dict[str, Any] | None = None,
    pretrained_strict: bool = True,
    pretrained_model_args: dict[str, Any] | None = None,
    cache_dir: Any = None,
    features_only: bool = False,
    out_indices: Any = 3,
    **kwargs: Any,
) -> nn.Module:
    """Build a model whose attention was swapped, as timm's `save_for_hf` or a file of weights notes it.

    kwargs: those of the model before the swap; its name, architecture (default: vit_tiny_patch16_224); and attn_layer
    (default: linear), arguments of `swap_attention`, or a list of them, one for each swap. A string first in the list
    is the attn_layer of the model before. What a file notes comes before the defaults, see `ModelSpec`.
    """
    cfg = resolve_pretrained_cfg(SWAPPED, pretrained_cfg, pretrained_cfg_overlay)
    weights = pretrained_weights(SWAPPED, cfg, cache_dir, pretrained_model_args) if pretrained else None
    spec = ModelSpec() if weights is None else complete_spec(weights)
    arguments = spec.arguments(kwargs, {"architecture": "vit_tiny_patch16_224", "attn_layer": {"kind": "linear"}})
    architecture, notes = arguments.pop("architecture"), _as_list(arguments.pop("attn_layer"))
    if isinstance(notes[0], str):
        arguments["attn_layer"] = notes.pop(0)
    # The file stays out of what timm saves with the model.
    noted = {**spec.entries(kwargs), **(pretrained_cfg_overlay or {}), **dict.fromkeys(SOURCES)}
    create: Any = timm.model_entrypoint(architecture)
    model = create(pretrained=False, pretrained_cfg=pretrained_cfg, pretrained_cfg_overlay=noted, **arguments)
    update_model_args(model, **{name: value for name, value in arguments.items() if name not in ("device", "dtype")})
    for note in notes:
        swap_attention(model, **note)
    if weights is not None:
        load_into(model, weights, "drop" if features_only else "fit", pretrained_strict)
    elif pretrained:
        options: dict[str, Any] = dict(in_chans=model.in_chans, cache_dir=cache_dir, strict=pretrained_strict)
        classes = 0 if features_only else model.num_classes
        load_pretrained(model, cfg.to_dict(), num_classes=classes, filter_fn=checkpoint_filter_fn, **options)
    if not features_only:
        return model
    features: Any = FeatureGetterNet(model, out_indices=out_indices)
    features.pretrained_cfg = features.default_cfg = model.pretrained_cfg
    return features


def _check_model(model: Any, blocks: Iterable[int] | None) -> list[int]:
    """Return the numbers of the blocks to change; ValueError where one of them, or the model, is of an unknown form."""
    found = getattr(model, "blocks", None)
    embed = getattr(model, "patch_embed", getattr(model, "embeds", None))
    if found is None or not hasattr(embed, "dynamic_feat_size") or not hasattr(model, "num_prefix_tokens"):
        parts = "patch_embed, num_prefix_tokens, and blocks that each have an attention `attn`"
        raise ValueError(f"The model must be one of timm's ViTs, with {parts}, got {type(model).__name__}.")
    indices = block_numbers(blocks, len(found))
    for i in indices:
        attn = getattr(found[i], "attn", None)
        if isinstance(attn, ViTAttention):
            continue
        if not isinstance(attn, KNOWN):
            raise ValueError(f"The attention of block {i} must be timm's softmax attention, got {type(attn).__name__}.")
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
    numbers = list(range(count)) if blocks is None else list(blocks)
    if any(not -count <= i < count for i in numbers):
        raise ValueError(f"blocks must be from 0 to {count - 1}, got {numbers}.")
    return sorted({range(count)[i] for i in numbers})


def _sizes(model: Any) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the model's image size and map; of one that takes images of many shapes, those of its positions."""
    if hasattr(model, "patch_embed"):
        return tuple(model.patch_embed.img_size), tuple(model.patch_embed.grid_size)
    Y, X = model.embeds.pos_embed_grid_size or (14, 14)
    return (Y * model.embeds.patch_size[0], X * model.embeds.patch_size[1]), (Y, X)


def _replace(model: Any, i: int, kind: str, options: dict[str, Any]) -> tuple[ViTAttention, set[str], list[str]]:
    """Return the attention for block i, names of its parameters with old values, and names of dropped parameters."""
    old = model.blocks[i].attn
    source = projections(old)
    num_heads = old.block_heads if isinstance(old, ViTAttention) else old.num_heads
    projected = [name for name in source if name[:2] in ("q.", "k.", "v.")]
    attn = vit_attention(kind)(
        model.embed_dim,
        num_heads,
        qkv_bias=not projected or any(name.endswith(".bias") for name in projected),
        proj_bias="proj.bias" in source or not source,
        attn_drop=_rate(getattr(old, "attn_drop", 0.0)),
        proj_drop=_rate(getattr(old, "proj_drop", 0.0)),
        feat_size=_sizes(model)[1],
        **options,
        # Those of the old attention, or of the model if that has no parameters.
        **get_device_dtype(nn.ModuleList([old, model])),
    )
    norms = {name: getattr(old, name, nn.Identity()) for name in ("q_norm", "k_norm")}
    attn.rotate_half = bool(getattr(old, "rotate_half", False))
    taken = [name for name in norms if attn.traits.qk_norm and not (attn.traits.key_is_query and name == "k_norm")]
    for name in taken:
        setattr(attn, name, norms[name])
    of_norms = {f"{name}.{part}" for name in taken for part, _ in norms[name].named_parameters()}
    kept, used = keep_projections(attn, source)
    if getattr(model, "rope", None) is not None and attn.traits.qk != "tokens":
        raise ValueError(f"{type(model).__name__} rotates the query and key of each token, which {kind!r} lacks.")
    old_names = {*source, *(f"{name}.{part}" for name, norm in norms.items() for part, _ in norm.named_parameters())}
    return attn.train(old.training), kept | of_norms, sorted(old_names - used - of_norms)


def keep_projections(attn: Attention, source: dict[str, Tensor]) -> tuple[set[str], set[str]]:
    """Copy values of source into attn's parameters; return the names of these, and of those in source."""
    kept, used = set(), set()
    with torch.no_grad():
        for name, parameter in attn.named_parameters():
            layer, _, kind = name.partition(".")
            parts = [name] if name in source else [f"{part}.{kind}" for part in attn.projections.get(layer, "")]
            values = [source.get(part) for part in parts]
            if len(parts) > 1 and parts[-1] == f"g.{kind}" and values[-1] is None:
                values[-1] = _open_gate(parameter.chunk(len(parts))[-1], kind, source)
            given = [value for value in values if value is not None]
            if given and len(given) == len(parts) and (value := torch.cat(given)).shape == parameter.shape:
                parameter.copy_(value)
                kept.add(name)
                used |= source.keys() & {*parts}
    return kept, used


def _open_gate(gate: Tensor, kind: str, source: dict[str, Tensor]) -> Tensor:
    """Return an open gate for its weight or bias; without a bias in source, keep its values."""
    has_bias = any(part in source for part in ("q.bias", "k.bias", "v.bias"))
    return torch.full_like(gate, float(kind == "bias")) if has_bias else gate


def _rate(dropout: Any) -> float:
    return dropout.p if isinstance(dropout, nn.Dropout) else float(dropout)


def projections(attn: Any) -> dict[str, Tensor]:
    """Return the parameters of an attention, its projections split into parts: "q.weight", "q.bias".

    Keys and values that groups of heads share are repeated for each head. A second layer of a part keeps its name.
    """
    values = {name: value for name, value in attn.named_parameters() if not name.startswith(("q_norm.", "k_norm."))}
    for name in values:
        if (groups := getattr(attn, "num_kv_groups", 1)) > 1 and name.startswith(("k_proj.", "v_proj.")):
            values[name] = values[name].unflatten(0, (-1, attn.head_dim)).repeat_interleave(groups, 0).flatten(0, 1)
    source: dict[str, Tensor] = {}
    for layer, parts in getattr(attn, "projections", PROJECTIONS).items():
        for kind in ("weight", "bias"):
            names = [f"{part}.{kind}" for part in parts]
            if f"{layer}.{kind}" in values and not source.keys() & {*names}:
                source |= zip(names, values.pop(f"{layer}.{kind}").chunk(len(parts)), strict=True)
    if "q_bias" in values:
        q, v = values.pop("q_bias"), values.pop("v_bias")
        source |= {"q.bias": q, "k.bias": torch.zeros_like(q), "v.bias": v}
    elif "k.weight" in source and (bias := source.get("v.bias", source.get("q.bias"))) is not None:
        source = {f"{part}.bias": torch.zeros_like(bias) for part in "qkv"} | source
    return source | values
