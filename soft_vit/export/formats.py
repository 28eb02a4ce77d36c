"""Formats of exported models: how to write a file, and how to open it as a function."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from soft_vit.export.model import ExportModel
from soft_vit.text_tables import one_line

Run = Callable[[Tensor], list[Tensor]]
"""An exported model: images `[B, C, H, W]` to its outputs."""

MAX_BATCH = 4096
MAX_SIDE = 4096
MIN_SIDE = 64
"""Smallest side of an image of any size: models treat a map of one token differently; here the last map has four."""
METADATA_FILE = "metadata.json"


def capture(source: ExportModel, any_size: bool = False) -> torch.export.ExportedProgram:
    """Return the graph of a model for any batch size and, with any_size, for sides of 64 pixels and above.

    Raises ValueError for a model whose graph depends on the image size.
    """
    dim = torch.export.Dim
    shapes = {0: dim("batch", min=1, max=MAX_BATCH)}
    if any_size:
        shapes |= {side: dim(name, min=MIN_SIDE, max=MAX_SIDE) for side, name in ((2, "height"), (3, "width"))}
    # torch.export would specialise on a batch of 1.
    example = torch.zeros(2, *source.input_size)
    try:
        # What torch cannot prove of sizes, such as that n^2 is not n, is checked as the graph runs.
        options = {"prefer_deferred_runtime_asserts_over_guards": True}
        return torch.export.export(source.model, (example,), dynamic_shapes=(shapes,), **options)
    except Exception as error:
        # torch.export raises errors of many types.
        size = " for images of any size; use --img-size for one size" if any_size else ""
        raise ValueError(f"torch.export cannot capture {source.name}{size} ({one_line(error)}).") from error


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

    Raises ValueError for a model that cannot be captured or translated.
    """
    # Report a missing package before the work: onnxruntime is needed only to verify the file.
    import onnx  # noqa: F401
    import onnxruntime  # noqa: F401
    import onnxscript  # noqa: F401

    program = capture(source, any_size)
    # torch would give them names such as s77.
    axes = {0: "batch", 2: "height", 3: "width"} if any_size else {0: "batch"}
    names = dict(input_names=["images"], output_names=list(source.outputs), dynamic_shapes=(axes,))
    try:
        onnx_program = torch.onnx.export(program, dynamo=True, verbose=False, **names)
    except Exception as error:
        # torch wraps the cause in long reports.
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = one_line(cause).split(". ")[0]
        raise ValueError(f"{source.name} cannot be translated to ONNX ({reason}).") from error
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


class Format(NamedTuple):
    """suffix: of the files. write: writes a model to a path. open: opens a file as a function."""

    suffix: str
    write: Callable[..., None]
    open: Callable[[Path], Run]


FORMATS = {
    "onnx": Format(".onnx", write_onnx, open_onnx),
    "torch_export": Format(".pt2", write_torch_export, open_torch_export),
}
"""The formats of exported models by name."""
