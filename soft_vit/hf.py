"""Attentions in the vision models of transformers, by name and swapped into their weights, and an encoder for SAM.

Imports transformers 5, the extra `[hf]`.
"""

import copy
import math
from collections.abc import Iterable
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import torch
import transformers
from timm.layers import get_device_dtype, to_2tuple
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import bidirectional_mask_function
from transformers.models.sam.modeling_sam import SamVisionEncoderOutput

from soft_vit.functional import FUNCTIONAL_KINDS, OPERATORS, attention
from soft_vit.layers.attention import attention_class
from soft_vit.layers.token_grid import ImageGrids, grids_of_sizes
from soft_vit.layers.vit_attention import ViTAttention, check_options, valid_tokens, vit_attention
from soft_vit.models.swap import SwapReport, block_numbers, keep_projections, meta_copy, projections
from soft_vit.weights.adapter import Adapter
from soft_vit.weights.load import load_into
from soft_vit.weights.read import load_weights

KNOWN_MODELS = ["ViT", "DeiT", "Dinov2", "Dinov2WithRegisters", "DINOv3ViT", "Siglip", "Siglip2", "CLIP"]
"""Models whose attention a swap replaces. It keeps its layers q_proj, k_proj, v_proj, and o_proj or out_proj."""

HUB_OPTIONS = {"cache_dir", "force_download", "local_files_only", "revision", "subfolder", "token"}
"""Options of `from_pretrained` that say where a file is."""


def register() -> list[str]:
    """Let models of transformers use `soft_vit_KIND` as attn_implementation, and return these names.

    >>> soft_vit.hf.register()
    >>> model = AutoModel.from_pretrained("facebook/dinov2-small", attn_implementation="soft_vit_linear")

    Kinds are those of `soft_vit.attention`, with their default options; tokens are a sequence. Attention in pooling
    heads (`nn.MultiheadAttention`) stays softmax. Dropout of attention weights must be 0 in training, and masks
    must be of padding. Causal models, and those that bias or cap scores, raise ValueError when they run.
    """
    for kind in FUNCTIONAL_KINDS:
        AttentionInterface.register(f"soft_vit_{kind}", partial(_attend, kind))
        AttentionMaskInterface.register(f"soft_vit_{kind}", _padding_mask)
    return [f"soft_vit_{kind}" for kind in FUNCTIONAL_KINDS]


def _attend(
    kind: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers' models do, by a kind."""
    if getattr(module, "is_causal", False) if is_causal is None else is_causal:
        raise ValueError(f"attn_implementation must not be 'soft_vit_{kind}' for causal attention.")
    given = {**kwargs, "dropout": dropout or None}
    if lost := [name for name in ("dropout", "position_bias", "softcap", "s_aux") if given.get(name) is not None]:
        raise ValueError(f"attn_implementation must be one that takes {', '.join(lost)}, got 'soft_vit_{kind}'.")
    # Models pass the usual factor, which types without one leave out.
    scale = scaling if OPERATORS[kind].scaled else None
    y = attention(query, key, value, kind, key_padding_mask=_key_mask(attention_mask), scale=scale)
    return y.transpose(1, 2), None


def _padding_mask(
    batch_size: int, q_length: int, mask_function: Any = None, attention_mask: Tensor | None = None, **kwargs: Any
) -> Tensor | None:
    """Return transformers' padding mask `[B, N]` as `[B, 1, 1, N]`, the form that its pooling heads take."""
    if mask_function not in (None, bidirectional_mask_function):
        raise ValueError("attn_implementation must be softmax for causal attention and masks of pairs of tokens.")
    return None if attention_mask is None or attention_mask.all() else attention_mask[:, None, None].bool()


def _key_mask(mask: Tensor | None) -> Tensor | None:
    """Return a mask of padding, `[B, N]` or one of `valid_tokens`, as bool `[B, N]`."""
    if mask is None:
        return None
    return mask.bool() if mask.ndim == 2 else valid_tokens(mask)


class SwappedAttention(nn.Module):
    """An attention of this package in a layer of transformers."""

    def __init__(self, attn: ViTAttention) -> None:
        super().__init__()
        self.attn = attn

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        grid: tuple[int, int] | ImageGrids | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        """Mix tokens `[B, P + N, C]`; grid: given by the model that makes tokens of images."""
        # timm's order of sines and cosines.
        rope = None if position_embeddings is None else torch.cat(position_embeddings[::-1], dim=-1)
        if isinstance(grid, ImageGrids) and self.attn.traits.follows_mask:
            grid = None
        return self.attn.mix_images(hidden_states, grid, rope, _key_mask(attention_mask)), None


def swap_attention(model: Any, kind: str, blocks: Iterable[int] | None = None, **options: Any) -> SwapReport:
    """Replace the attention of a vision model of transformers, in place; see `soft_vit.swap_attention`.

    For ViT, DeiT, DINOv2 with and without registers, DINOv3, SigLIP, SigLIP2 and CLIP's vision tower, which follow the
    map of each image afterwards. The config notes the swap as `soft_vit`, from which `from_pretrained` repeats it.

    Raises ValueError for an unknown attention, option or block, and a model of another form, which stays unchanged.
    """
    tower, _ = vision_attentions(model)
    before, report = meta_copy(tower), _replace(model, kind, blocks, **options)
    report.forms, report.run = (before, meta_copy(tower)), _run_image
    note = {"kind": kind, "blocks": report.blocks, **options}
    _save_own_names(model)
    # Other models that were made from the config keep it.
    shared, config = model.config, copy.copy(model.config)
    config.soft_vit = [*getattr(shared, "soft_vit", []), note]
    for module in model.modules():
        if getattr(module, "config", None) is shared:
            module.config = config
    return report


def from_pretrained(name: str | Path, **kwargs: Any) -> Any:
    """Load a model that `save_pretrained` wrote after a swap: a folder, or a repository of the hub.

    kwargs: of transformers' `from_pretrained`. Raises ValueError for a config without a swap, and missing or unexpected
    weights.
    """
    config = transformers.AutoConfig.from_pretrained(name, **{key: kwargs[key] for key in kwargs.keys() & HUB_OPTIONS})
    notes = getattr(config, "soft_vit", [])
    if not notes or not config.architectures:
        raise ValueError(f"config.json of {name} must note a swap by soft_vit; load other models by transformers.")
    cls: Any = getattr(transformers, config.architectures[0])

    def init(self: Any, *args: Any, **options: Any) -> None:
        cls.__init__(self, *args, **options)
        for note in notes:
            _replace(self, **note)

    swapped: Any = type(cls.__name__, (cls,), {"__init__": init, "__module__": cls.__module__})
    model, info = swapped.from_pretrained(name, output_loading_info=True, **kwargs)
    info["mismatched_keys"] = [name for name, *_ in info["mismatched_keys"] if ".attn." in name]
    if problems := {key: sorted(names) for key, names in info.items() if key.endswith("_keys") and names}:
        raise ValueError(f"Weights of {name} must fit the swap that its config notes, got {problems}.")
    model.__class__ = cls
    _save_own_names(model)
    return model


def _save_own_names(model: Any) -> None:
    """Let `save_pretrained` write the model's own names: loading renames others, and Linformer's `weight_v` too."""
    model._weight_conversions = []


def _replace(model: Any, kind: str, blocks: Iterable[int] | None, **options: Any) -> SwapReport:
    """Replace attentions, and let the model give them the grid of each image."""
    check_options(kind, options)
    tower, layers = vision_attentions(model)
    report = SwapReport(kind, block_numbers(blocks, len(layers)))
    cls = attention_class(kind)
    if hasattr(tower.config, "num_patches") and cls.traits.fixed_grid:
        raise ValueError(f"kind must be without weights of one map for a model of images of many shapes, got {kind!r}.")
    if hasattr(tower, "rope_embeddings") and cls.traits.qk != "tokens":
        raise ValueError(f"kind must have a query and a key of each token for {type(tower).__name__}, got {kind!r}.")
    replacements = {i: _replacement(tower, layers[i][2], kind, options) for i in report.blocks}
    for i, (attn, kept, dropped) in replacements.items():
        parent, name, _ = layers[i]
        setattr(parent, name, SwappedAttention(attn))
        report.add(f"{i}.{name}.attn.", attn, kept, dropped)
    if _give_grid not in tower._forward_pre_hooks.values():
        tower.register_forward_pre_hook(_give_grid, with_kwargs=True)
    return report


def vision_attentions(model: Any) -> tuple[Any, list[tuple[nn.Module, str, nn.Module]]]:
    """Return the part of a model that makes tokens of images, and its attentions: parent, name and module."""
    for tower in model.modules():
        # The innermost one.
        inside = any(hasattr(part, "embeddings") for part in tower.modules() if part is not tower)
        if not hasattr(tower, "embeddings") or inside:
            continue
        found = [
            (parent, name, module)
            for parent in tower.modules()
            for name, module in parent.named_children()
            if type(module).__name__.removesuffix("Attention") in KNOWN_MODELS or isinstance(module, SwappedAttention)
        ]
        if found and hasattr(tower.config, "patch_size"):
            return tower, found
    names = ", ".join(KNOWN_MODELS)
    raise ValueError(f"model must be a vision model of transformers ({names}), got {type(model).__name__}.")


def _replacement(tower: Any, old: Any, kind: str, options: dict[str, Any]) -> tuple[ViTAttention, set[str], list[str]]:
    """Return an attention with the weights of an old one, the names of these, and names that are dropped."""
    old, config = old.attn if isinstance(old, SwappedAttention) else old, tower.config
    names = ("block_heads", "num_heads", "num_attention_heads")
    num_heads = next(getattr(old, name) for name in names if hasattr(old, name))
    source = projections(old)
    source = {name.replace("o_proj.", "proj.").replace("out_proj.", "proj."): x for name, x in source.items()}
    attn = vit_attention(kind)(
        config.hidden_size,
        num_heads,
        qkv_bias=not source or any(name in source for name in ("q.bias", "v.bias")),
        proj_bias=not source or "proj.bias" in source,
        attn_drop=getattr(config, "attention_probs_dropout_prob", getattr(config, "attention_dropout", 0.0)),
        feat_size=_grid(config),
        **options,
        **get_device_dtype(tower),
    )
    attn.rotate_half = True
    kept, used = keep_projections(attn, source)
    return attn.train(old.training), kept, sorted(source.keys() - used)


def _grid(config: Any) -> tuple[int, int]:
    """Return the grid (Y, X) of the images that a config names."""
    if hasattr(config, "num_patches"):
        return (math.isqrt(config.num_patches),) * 2
    (H, W), (h, w) = to_2tuple(config.image_size), to_2tuple(config.patch_size)
    return H // h, W // w


def _give_grid(tower: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Add the grids of images to the arguments of a forward, which hands them to each attention."""
    given = signature(tower.forward).bind_partial(*args, **kwargs).arguments
    if "spatial_shapes" in given:
        grid: Any = grids_of_sizes(given["spatial_shapes"])
    else:
        (H, W), (h, w) = given["pixel_values"].shape[-2:], to_2tuple(tower.config.patch_size)
        grid = H // h, W // w
    return args, {**kwargs, "grid": grid}


def _run_image(tower: Any) -> Any:
    """Run a vision model for one image of the config's size."""
    weight, config = next(tower.parameters()), tower.config
    (Y, X), (h, w) = _grid(config), to_2tuple(config.patch_size)
    if not hasattr(config, "num_patches"):
        return tower(pixel_values=weight.new_zeros(1, config.num_channels, Y * h, X * w))
    pixels = weight.new_zeros(1, Y * X, h * w * config.num_channels)
    return tower(pixel_values=pixels, spatial_shapes=torch.tensor([[Y, X]]), pixel_attention_mask=None)


class SamImageEncoder(nn.Module):
    """An image encoder `efficientvit_sam_*` in the place of `vision_encoder` in transformers' `SamModel`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Tensor, **kwargs: Any) -> SamVisionEncoderOutput:
        """Return the embedding `[B, 256, 64, 64]` of images `[B, 3, H, W]` as `last_hidden_state`."""
        return SamVisionEncoderOutput(last_hidden_state=self.model(pixel_values))


def _sam_decoder() -> Adapter:
    """Return the names of SAM's prompt encoder and mask decoder in released files, and in transformers."""
    names = {
        "prompt_encoder.pe_layer.positional_encoding_gaussian_matrix": "shared_image_embedding.positional_embedding",
        "prompt_encoder.point_embeddings.**": "prompt_encoder.point_embed.**",
        "mask_decoder.transformer.norm_final_attn.*": "mask_decoder.transformer.layer_norm_final_attn.*",
        "mask_decoder.transformer.layers.*.norm*.*": "mask_decoder.transformer.layers.*.layer_norm*.*",
    }
    for number, name in {0: "conv1", 1: "layer_norm1", 3: "conv2", 4: "layer_norm2", 6: "conv3"}.items():
        names[f"prompt_encoder.mask_downscaling.{number}.*"] = f"prompt_encoder.mask_embed.{name}.*"
    for number, name in {0: "conv1", 1: "layer_norm", 3: "conv2"}.items():
        names[f"mask_decoder.output_upscaling.{number}.*"] = f"mask_decoder.upscale_{name}.*"
    for number, name in {0: "proj_in", 1: "layers.0", 2: "proj_out"}.items():
        for mlp in ("output_hypernetworks_mlps.*", "iou_prediction_head"):
            names[f"mask_decoder.{mlp}.layers.{number}.*"] = f"mask_decoder.{mlp}.{name}.*"
    return Adapter({"image_encoder.**": None, **names})


def sam_model(encoder: nn.Module, checkpoint: str | Path | None = None) -> Any:
    """Return transformers' `SamModel` with an image encoder `efficientvit_sam_*`, such as `efficientvit_sam_l0`.

    checkpoint: a released file, whose weights of encoder, prompt encoder and mask decoder are loaded; without one, the
    latter two are random. Prompts lie in a frame of 1,024 pixels, also for images of 512.

    Raises what `load_into` raises.
    """
    # Its own encoder is replaced.
    config = transformers.SamConfig(vision_config={"num_hidden_layers": 0, "hidden_size": 8})
    model: Any = transformers.SamModel(config)
    # That of the authors; transformers has 1e-5.
    model.mask_decoder.transformer.layer_norm_final_attn.eps = 1e-6
    model.vision_encoder = nn.Identity()
    if checkpoint is not None:
        weights = load_weights(checkpoint)
        load_into(encoder, weights)
        rest = _sam_decoder().from_released(weights)
        # One parameter under two names.
        names = [name for name in rest if "shared" in name]
        shared = {name.replace("shared_image", "prompt_encoder.shared"): rest[name] for name in names}
        load_into(model, rest | shared, "strict")
    model.vision_encoder = SamImageEncoder(encoder)
    return model.eval()
