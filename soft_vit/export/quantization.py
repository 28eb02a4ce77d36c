"""Quantise files to int8 by the tools of their runtimes, and measure the loss of accuracy."""

import logging
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from timm.data import create_transform
from torch import Tensor

from soft_vit.data import CLASSES, ShapeImages, normalised_batch
from soft_vit.data.images import find_images, find_multi_label_images
from soft_vit.export.formats import Run, open_onnx, save_openvino
from soft_vit.export.model import ExportModel

CALIBRATION_IMAGES = 256
TEST_IMAGES = 1000
BATCH = 32
PRODUCTS = ("Conv", "Gemm", "MatMul")
OPENVINO_PRODUCTS = ("Convolution", "GroupConvolution", "MatMul")


def quantize(
    full: Path, target: Path, source: ExportModel, root: Path | None = None, count: int = CALIBRATION_IMAGES
) -> str:
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
    drop_surplus(model.graph)
    # onnxruntime computes large depthwise kernels, as of 9 x 9, several times slower in int8.
    slow = [each.name for each in model.graph.initializer if each.dims[1:2] == [1] and math.prod(each.dims[2:]) > 49]
    weights = {weight.name for weight in model.graph.initializer}.difference(slow)
    chosen = [node.name for node in model.graph.node if node.op_type in PRODUCTS and weights & set(node.input[:2])]
    batches = iter([{model.graph.input[0].name: batch} for batch in calibration_batches(source, root, count)])
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
    return summary(len(chosen), sum(node.op_type in PRODUCTS for node in model.graph.node), full, target)


def quantize_openvino(
    full: Path, target: Path, source: ExportModel, root: Path | None = None, count: int = CALIBRATION_IMAGES
) -> str:
    """Write a file of OpenVINO in int8 by NNCF, with the products that `quantize` chooses; return a sentence."""
    import nncf
    import openvino

    model = openvino.Core().read_model(full)
    products = [node for node in model.get_ops() if node.get_type_name() in OPENVINO_PRODUCTS]
    weighted = [node for node in products if any(map(is_constant, inputs_of(node))) and not is_split(node)]
    chosen = {node.get_friendly_name() for node in weighted}
    others = [node.get_friendly_name() for node in model.get_ops() if node.get_friendly_name() not in chosen]
    batches = calibration_batches(source, root, count)
    # Otherwise NNCF writes a line for each node that is left out.
    logging.getLogger("nncf").setLevel(logging.ERROR)
    model = nncf.quantize(
        model,
        nncf.Dataset(batches),
        subset_size=len(batches),
        preset=nncf.QuantizationPreset.MIXED,
        ignored_scope=nncf.IgnoredScope(names=others, validate=False),
        # As reduce_range.
        advanced_parameters=nncf.AdvancedQuantizationParameters(overflow_fix=nncf.OverflowFix.ENABLE),
    )
    save_openvino(model, source, target)
    return summary(len(chosen), len(products), *(path.with_suffix(".bin") for path in (full, target)))


def inputs_of(node: Any) -> list[Any]:
    """Return the nodes of OpenVINO that give a node's inputs."""
    return [value.get_source_output().get_node() for value in node.inputs()]


def is_split(node: Any) -> bool:
    """Return whether a depthwise convolution's output gets more dimensions, which OpenVINO cannot compile in int8."""
    users = [each.get_node() for each in node.output(0).get_target_inputs()]
    split = [user for user in users if user.get_type_name() == "Reshape" and len(user.output(0).partial_shape) > 4]
    return node.get_type_name() == "GroupConvolution" and bool(split)


def is_constant(node: Any) -> bool:
    """Return whether a node of OpenVINO is a weight, or computed from weights alone."""
    inputs = inputs_of(node)
    return node.get_type_name() == "Constant" or (bool(inputs) and all(map(is_constant, inputs)))


QUANTIZERS: dict[str, Callable[..., str]] = {"onnx": quantize, "openvino": quantize_openvino}
"""Functions that quantise a file, by format."""


def calibration_batches(source: ExportModel, root: Path | None, count: int) -> list[Any]:
    """Return arrays `[B, 3, H, W]` of `labelled_images`."""
    images, _ = labelled_images("train", count, source, root)
    return [batch.numpy() for batch in images.split(BATCH)]


def summary(chosen: int, products: int, full: Path, target: Path) -> str:
    """Return a sentence about the number of quantised products, and the sizes of files with weights."""
    before, after = (path.stat().st_size / 1e6 for path in (full, target))
    return f"{chosen} of {products} products are in int8; {before:.1f} MB became {after:.1f} MB."


def drop_surplus(graph: Any) -> None:
    """Drop, in place, nodes that expand a weight to the batch, as MatMul broadcasts, and biases of zeros.

    Convolutions share these, and onnxruntime gives copies the name of another value, as "val_703" to one of "val_70".
    """
    from onnx.numpy_helper import to_array

    zeros = {each.name for each in graph.initializer if not to_array(each).any()}
    weights = {weight.name: len(weight.dims) for weight in graph.initializer}
    nodes = [node for node in graph.node if node.op_type == "Expand" and weights.get(node.input[0]) == 2]
    expanded = {node.output[0]: node.input[0] for node in nodes}
    for node in graph.node:
        if node.op_type == "MatMul":
            node.input[:] = [expanded.get(name, name) for name in node.input]
        elif node.op_type == "Conv" and zeros.issuperset(node.input[2:]):
            del node.input[2:]
    used = {name for node in graph.node for name in node.input} | {output.name for output in graph.output}
    for node in nodes:
        if node.output[0] not in used:
            graph.node.remove(node)
    for each in [each for each in graph.initializer if each.name in zeros - used]:
        graph.initializer.remove(each)


def labelled_images(
    split: str, count: int, source: ExportModel, root: Path | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return images `[count, 3, H, W]` as a model takes them, and their labels `[count]`, None for unknown classes.

    They are generated, or evenly spaced ones of a split of the data set in root, see `find_images`. For a model of
    several labels, generated images have none, and those of `find_multi_label_images` have them as bool `[count, K]`.
    """
    several = source.spec.multi_label
    in_bytes = source.dtype == torch.uint8
    mean, std = ((0.0,) * 3, (1 / 255,) * 3) if in_bytes else (source.mean, source.std)
    if root is None:
        samples = list(ShapeImages(count, split, size=source.input_size[1:]))
        images, numbers = normalised_batch(samples, mean, std), [sample.label for sample in samples]
        known = tuple(source.classes) == tuple(CLASSES) and not several
    else:
        find, known = find_multi_label_images if several else find_images, bool(source.classes)
        # The classes have words where the folders, as those of ImageNet, have WordNet's numbers.
        recorded = source.spec.class_names(len(source.classes))
        found = find(root, split, classes=[*recorded, *source.classes[len(recorded) :]] or None)
        total = len(found.samples)
        chosen = [found.samples[i * total // count] for i in range(count)] if total > count else found.samples
        prepare = create_transform(source.input_size, mean=mean, std=std, **source.crop)
        images = torch.stack([prepare(found.load(entry)) for entry, _ in chosen])
        numbers = [label for _, label in chosen]
        if several:
            numbers = [[i in label for i in range(len(found.classes))] for label in numbers]
    return images.round().to(torch.uint8) if in_bytes else images, torch.tensor(numbers) if known else None


def check_drop(
    full: Path,
    int8: Path,
    source: ExportModel,
    max_drop: float,
    root: Path | None = None,
    open_file: Callable[[Path], Run] = open_onnx,
) -> str:
    """Measure a file and its int8 form on `labelled_images`; return a sentence about the result.

    The measure is top-1 or, for a model of several labels, the F1 score of all labels with a probability above 0.5.
    For a model with other classes, disagreement between the files counts as loss. Raises ValueError if int8 loses
    more than max_drop points.
    """
    several = source.spec.multi_label
    # "test" of generated images; data sets have "val".
    images, labels = labelled_images("val" if root else "test", TEST_IMAGES, source, root)
    chosen = []
    for run in map(open_file, (full, int8)):
        scores = torch.cat([run(batch)[0] for batch in images.split(BATCH)])
        chosen.append(scores > 0 if several else F.one_hot(scores.argmax(1), scores.shape[1]).bool())
    agreement = shared(*chosen)
    measure, what = "top-1", "both predict the same class for {:.1f} % of"
    if several:
        measure, what = "F1", "F1 of the labels of both is {:.1f} % on"
    loss, result = 100 - agreement, f"{what.format(agreement)} {len(images)} {'' if root else 'generated '}images"
    if labels is not None:
        truth = labels if several else F.one_hot(labels, chosen[0].shape[1]).bool()
        before, after = (shared(each, truth) for each in chosen)
        loss = before - after
        result = f"{measure} is {before:.1f} % in float32 and {after:.1f} % in int8; {result}"
    if loss > max_drop:
        raise ValueError(f"int8 must cost at most {max_drop} points, so the file was not written: {result}.")
    return f"{result[0].upper()}{result[1:]}."


def shared(a: Tensor, b: Tensor) -> float:
    """Return the F1 score of a and b, bool `[N, K]`, in percent; with one True in each row, the share of equal rows."""
    return 100 * (2 * (a & b).sum() / (a.sum() + b.sum())).nan_to_num(nan=1.0).item()
