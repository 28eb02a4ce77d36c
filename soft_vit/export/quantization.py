"""Quantise ONNX files to int8 by onnxruntime, and measure the loss of accuracy."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from timm.data import create_transform

from soft_vit.data import CLASSES, ShapeImages, normalised_batch
from soft_vit.data.images import find_images
from soft_vit.export.formats import open_onnx
from soft_vit.export.model import ExportModel

CALIBRATION_IMAGES = 256
TEST_IMAGES = 1000
BATCH = 32
PRODUCTS = ("Conv", "Gemm", "MatMul")


def quantize(full: Path, target: Path, source: ExportModel, root: Path | None = None) -> str:
    """Write an ONNX file in int8 (QDQ), calibrated on `labelled_images`; return a sentence about the result.

    Only products with a weight are quantised. Products of two activations (Gaussian kernels, Newton iteration,
    attention) would not shrink the file, and Newton's iteration needs float32 on a flat kernel.
    """
    import onnx
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    # onnxruntime quantises only products of known shapes.
    prepared = target.with_name(f"prepared_{target.name}")
    quant_pre_process(full, prepared, skip_symbolic_shape=True, skip_optimization=True)
    model = onnx.load(prepared)
    prepared.unlink()
    drop_expansions(model.graph)
    weights = {weight.name for weight in model.graph.initializer}
    chosen = [node.name for node in model.graph.node if node.op_type in PRODUCTS and weights & set(node.input[:2])]
    images, _ = labelled_images("train", CALIBRATION_IMAGES, source, root)
    batches = iter([{model.graph.input[0].name: batch.numpy()} for batch in images.split(BATCH)])
    quantize_static(
        model,
        target,
        SimpleNamespace(get_next=lambda: next(batches, None)),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
        # Avoids overflow of 16-bit sums on processors without int8 dot products.
        reduce_range=True,
        nodes_to_quantize=chosen,
    )
    products = sum(node.op_type in PRODUCTS for node in model.graph.node)
    before, after = (path.stat().st_size / 1e6 for path in (full, target))
    return f"{len(chosen)} of {products} products are in int8; {before:.1f} MB became {after:.1f} MB."


def drop_expansions(graph: Any) -> None:
    """Drop nodes that expand a weight to the batch, in place: MatMul broadcasts by itself."""
    weights = {weight.name: len(weight.dims) for weight in graph.initializer}
    nodes = [node for node in graph.node if node.op_type == "Expand" and weights.get(node.input[0]) == 2]
    expanded = {node.output[0]: node.input[0] for node in nodes}
    for node in graph.node:
        if node.op_type == "MatMul":
            node.input[:] = [expanded.get(name, name) for name in node.input]
    used = {name for node in graph.node for name in node.input} | {output.name for output in graph.output}
    for node in nodes:
        if node.output[0] not in used:
            graph.node.remove(node)


def labelled_images(
    split: str, count: int, source: ExportModel, root: Path | None = None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return images `[count, 3, H, W]` as a model takes them, and their labels `[count]`, None for unknown classes.

    They are generated, or evenly spaced ones of a split of the data set in root, see `find_images`.
    """
    in_bytes = source.dtype == torch.uint8
    mean, std = ((0.0,) * 3, (1 / 255,) * 3) if in_bytes else (source.mean, source.std)
    if root is None:
        samples = list(ShapeImages(count, split, size=source.input_size[1:]))
        images, numbers = normalised_batch(samples, mean, std), [sample.label for sample in samples]
        known = tuple(source.classes) == tuple(CLASSES)
    else:
        found, known = find_images(root, split, classes=source.classes or None), bool(source.classes)
        chosen = found.samples[:: max(1, len(found.samples) // count)][:count]
        prepare = create_transform(source.input_size, mean=mean, std=std, **source.crop)
        images = torch.stack([prepare(found.load(entry)) for entry, _ in chosen])
        numbers = [label for _, label in chosen]
    return images.round().to(torch.uint8) if in_bytes else images, torch.tensor(numbers) if known else None


def check_drop(full: Path, int8: Path, source: ExportModel, max_drop: float, root: Path | None = None) -> str:
    """Measure a file and its int8 form on `labelled_images`; return a sentence about the result.

    For a model with other classes, disagreement between the files counts as loss. Raises ValueError if int8 loses
    more than max_drop points of top-1.
    """
    # "test" of generated images; data sets have "val".
    images, labels = labelled_images("val" if root else "test", TEST_IMAGES, source, root)
    chosen = []
    for path in (full, int8):
        run = open_onnx(path)
        chosen.append(torch.cat([run(batch)[0].argmax(1) for batch in images.split(BATCH)]))
    agreement = 100 * (chosen[0] == chosen[1]).float().mean().item()
    loss = 100 - agreement
    result = f"both predict the same class for {agreement:.1f} % of {len(images)} {'' if root else 'generated '}images"
    if labels is not None:
        before, after = (100 * (each == labels).float().mean().item() for each in chosen)
        loss, result = before - after, f"top-1 is {before:.1f} % in float32 and {after:.1f} % in int8; {result}"
    if loss > max_drop:
        raise ValueError(f"int8 must cost at most {max_drop} points, so the file was not written: {result}.")
    return f"{result[0].upper()}{result[1:]}."
