"""Formats of exported models: how to write a file, and how to open it as a function."""

import json
import math
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch.fx.node import map_arg
from torchvision.transforms.functional import to_pil_image

from soft_vit.export.model import ExportModel
from soft_vit.export.translation import translate
from soft_vit.text_tables import one_line

Run = Callable[[Tensor], list[Tensor]]
"""An exported model: images `[B, C, H, W]` to its outputs."""

MAX_BATCH = 4096
MAX_SIDE = 4096
METADATA_FILE = "metadata.json"


def without_stack_traces() -> AbstractContextManager:
    """Return a context without traces of the code, which no file holds, and which take a fifth of a capture's time."""
    # Older versions of torch lack the setting.
    return patch.object(torch.fx.config, "do_not_emit_stack_traces", True, create=True)


def capture(source: ExportModel, any_size: bool = False, any_batch: bool = True) -> torch.export.ExportedProgram:
    """Return the graph of a model for any batch or one image and, with any_size, for sides from its min_side up.

    Raises ValueError for a model whose graph depends on the image size.
    """
    dim = torch.export.Dim
    shapes = {0: dim("batch", min=1, max=MAX_BATCH)} if any_batch else {}
    if any_size:
        shapes |= {side: dim(name, min=source.min_side, max=MAX_SIDE) for side, name in ((2, "height"), (3, "width"))}
    # torch.export would specialise on a batch of 1.
    example = source.images(2 if any_batch else 1, *source.input_size[1:])
    try:
        # What torch cannot prove of sizes, such as that n^2 is not n, is checked as the graph runs.
        options = {"prefer_deferred_runtime_asserts_over_guards": True}
        # With symbolic sizes, an entry of this cache takes as much time as the operator that it would spare.
        with torch._dynamo.config.patch(fake_tensor_cache_enabled=not any_size), without_stack_traces():
            return torch.export.export(source.model, (example,), dynamic_shapes=(shapes,), **options)
    except Exception as error:
        # torch.export raises errors of many types.
        size = " for images of any size; use --img-size for one size" if any_size else ""
        raise ValueError(f"torch.export cannot capture {source.name}{size} ({one_line(error)}).") from error


def core_decompositions() -> dict[Any, Callable[..., Any]]:
    """Return torch's decompositions to Core ATen, that of norms, which torch 2.11 lacks, and those for Core ML."""
    table = torch.export.default_decompositions()
    table[torch.ops.aten.linalg_vector_norm.default] = torch._refs.linalg.vector_norm
    table[torch.ops.aten.roll.default] = _roll_by_slices
    # Core ML lacks it, and has the other two.
    table[torch.ops.aten.bitwise_or.Tensor] = lambda a, b: ~(~a & ~b)
    return table


def _roll_by_slices(x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    """Roll by joining two parts; torch would gather by indices modulo the size, which Core ML lacks."""
    if not dims:
        return NotImplemented
    for shift, dim in zip(shifts, dims, strict=True):
        first = -shift % x.shape[dim]
        x = torch.cat([x.narrow(dim, first, x.shape[dim] - first), x.narrow(dim, 0, first)], dim)
    return x


def core_aten(source: ExportModel, table: dict[Any, Callable[..., Any]] | None = None) -> torch.export.ExportedProgram:
    """Return the graph of a model for one image in Core ATen operators, without aliases and assertions.

    table: of decompositions, by default `core_decompositions`.
    """
    program = capture(source, any_batch=False).run_decompositions(table or core_decompositions())
    aten, graph = torch.ops.aten, program.graph_module.graph
    for node in list(graph.nodes):
        if node.target is aten.alias.default:
            node.replace_all_uses_with(node.args[0])
        if node.target in (aten.alias.default, aten._assert_tensor_metadata.default):
            graph.erase_node(node)
    program.graph_module.recompile()
    return program


def fold_constants(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Replace, in place, what a graph computes from no input and no weight, such as an identity, by its values."""
    values: dict[torch.fx.Node, Any] = {}
    for node in module.graph.nodes:
        if node.op == "call_function" and all(each in values for each in node.all_input_nodes):
            args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = node.target(*args, **kwargs)
    for index, (node, value) in enumerate(values.items()):
        if isinstance(value, Tensor) and any(user not in values for user in node.users):
            module.register_buffer(f"constant_{index}", value)
            with module.graph.inserting_before(node):
                node.replace_all_uses_with(module.graph.get_attr(f"constant_{index}"), lambda user: user not in values)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def write_torch_export(source: ExportModel, path: Path, any_size: bool = False) -> None:
    """Write a program of torch.export with its metadata as a file inside; raises ValueError as `capture`."""
    program = capture(source, any_size)
    for node in program.graph.nodes:
        # Contains paths of this machine.
        node.meta.pop("stack_trace", None)
    torch.export.save(program, path, extra_files={METADATA_FILE: json.dumps(source.metadata(), indent=2)})


def open_torch_export(path: Path) -> Run:
    """Return a file of `write_torch_export` as a function."""
    module = torch.export.load(path).module()
    return torch.no_grad()(lambda images: as_list(module(images)))


def as_list(outputs: Tensor | tuple[Tensor, ...]) -> list[Tensor]:
    return [outputs] if isinstance(outputs, Tensor) else list(outputs)


def write_onnx(source: ExportModel, path: Path, any_size: bool = False) -> None:
    """Write an ONNX file with weights inside and the metadata as properties.

    Raises ValueError for a model that cannot be captured.
    """
    # Report a missing package before the work: onnxruntime is needed only to verify the file.
    import onnx  # noqa: F401
    import onnxruntime  # noqa: F401
    import onnxscript  # noqa: F401

    program = capture(source, any_size)
    # torch would give them names such as s77.
    axes = {0: "batch", 2: "height", 3: "width"} if any_size else {0: "batch"}
    names = dict(input_names=["images"], output_names=list(source.outputs), dynamic_shapes=(axes,))
    onnx_program = translate(program, **names)
    for node in onnx_program.model.graph.all_nodes():
        # Contains paths of this machine, and is larger than a small model.
        node.metadata_props.clear()
    onnx_program.model.metadata_props.update(source.metadata())
    onnx_program.save(path, external_data=False)


def open_onnx(path: Path) -> Run:
    """Return a file of `write_onnx` as a function, by onnxruntime on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # Log fatal errors only: others are raised as well, and the optimizer warns about constants.
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda images: [torch.from_numpy(output) for output in session.run(None, {name: images.numpy()})]


def write_openvino(source: ExportModel, path: Path, any_size: bool = False) -> None:
    """Write OpenVINO's representation, made from ONNX: a graph with the metadata, and its weights in a file beside."""
    import openvino

    full = path.with_suffix(".onnx")
    write_onnx(source, full, any_size)
    save_openvino(openvino.convert_model(full), source, path)
    full.unlink()


def save_openvino(model: Any, source: ExportModel, path: Path) -> None:
    """Write a model of OpenVINO with the metadata of its source."""
    import openvino

    for key, value in source.metadata().items():
        model.set_rt_info(value, ["model_info", key])
    openvino.save_model(model, path, compress_to_fp16=False)


def open_openvino(path: Path) -> Run:
    """Return a file of `write_openvino` as a function, by OpenVINO on the CPU without further rounding."""
    import openvino

    model = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return lambda images: [torch.from_numpy(output.copy()) for output in model(images.numpy()).to_tuple()]


def write_executorch(source: ExportModel, path: Path) -> None:
    """Write a program of ExecuTorch for one image, whose products XNNPACK computes, with its metadata beside."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    table = core_decompositions()
    table[torch.ops.aten.gelu.default] = _gelu_by_tanh
    # XNNPACK takes layers that are still linear; a plain loop would compute most others.
    table.pop(torch.ops.aten.linear.default)
    edge = to_edge_transform_and_lower(core_aten(source, table), partitioner=[XnnpackPartitioner()])
    path.write_bytes(edge.to_executorch().buffer)
    write_metadata_beside(source, path)


def _gelu_by_tanh(x: Tensor, *, approximate: str = "none") -> Any:
    """Write out GELU by tanh, for which XNNPACK has a polynomial with errors up to 5e-5 of the largest output."""
    if approximate != "tanh":
        return NotImplemented
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def open_executorch(path: Path) -> Run:
    """Return a file of `write_executorch` as a function."""
    from executorch.runtime import Runtime

    method = Runtime.get().load_program(path).load_method("forward")
    return lambda images: [output.clone() for output in method.execute([images])]


def write_litert(source: ExportModel, path: Path) -> None:
    """Write a program of LiteRT (TensorFlow Lite) for one image, with its metadata beside."""
    import litert_torch

    # LiteRT cannot number elements, as an identity does.
    module = fold_constants(capture(source, any_batch=False).module(check_guards=False))
    litert_torch.convert(module, (source.images(1, *source.input_size[1:]),)).export(str(path))
    write_metadata_beside(source, path)


def open_litert(path: Path) -> Run:
    """Return a file of `write_litert` as a function, by LiteRT on the CPU."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(path))
    run = interpreter.get_signature_runner()
    (name,) = run.get_input_details()
    return lambda images: [torch.from_numpy(output) for _, output in sorted(run(**{name: images.numpy()}).items())]


def write_coreml(source: ExportModel, path: Path) -> None:
    """Write a package of Core ML for one image, with its metadata inside; with preprocessing, for an image of iOS."""
    import coremltools

    names = [coremltools.TensorType(name=name) for name in source.outputs]
    shape = 1, *source.input_size
    images = coremltools.TensorType(name="images", shape=shape)
    if source.dtype == torch.uint8:
        layout = "GRAYSCALE" if source.input_size[0] == 1 else "RGB"
        images = coremltools.ImageType(name="images", shape=shape, color_layout=layout)
    target, precision = coremltools.target.iOS16, coremltools.precision.FLOAT32
    how = dict(inputs=[images], outputs=names, minimum_deployment_target=target, compute_precision=precision)
    # Core ML gives the pixels of an image as floats.
    model = coremltools.convert(core_aten(replace(source, dtype=torch.float32)), **how)
    model.user_defined_metadata.update(source.metadata())
    model.save(str(path))


def open_coreml(path: Path) -> Run | None:
    """Return a package of `write_coreml` as a function on a Mac; elsewhere read its specification, and return None."""
    import coremltools

    on_mac = sys.platform == "darwin"
    model = coremltools.models.MLModel(str(path), skip_model_load=not on_mac)
    names = [output.name for output in model.get_spec().description.output]
    if not on_mac:
        return None

    def run(images: Tensor) -> list[Tensor]:
        given = to_pil_image(images[0]) if images.dtype == torch.uint8 else images.numpy()
        found = model.predict({"images": given})
        return [torch.from_numpy(found[name]) for name in names]

    return run


def write_metadata_beside(source: ExportModel, path: Path) -> None:
    """Write the metadata as FILE.json, for formats that have no place for them."""
    path.with_name(f"{path.name}.json").write_text(json.dumps(source.metadata(), indent=2))


class Format(NamedTuple):
    """suffix: of the files. write: writes a model to a path. open: opens a file as a function, or checks it alone.

    any_batch: whether a file takes any number of images instead of one, and write any_size.
    """

    suffix: str
    write: Callable[..., None]
    open: Callable[[Path], Run | None]
    any_batch: bool = True


FORMATS = {
    "onnx": Format(".onnx", write_onnx, open_onnx),
    "torch_export": Format(".pt2", write_torch_export, open_torch_export),
    "openvino": Format(".xml", write_openvino, open_openvino),
    "executorch": Format(".pte", write_executorch, open_executorch, any_batch=False),
    "litert": Format(".tflite", write_litert, open_litert, any_batch=False),
    "coreml": Format(".mlpackage", write_coreml, open_coreml, any_batch=False),
}
"""The formats of exported models by name."""
