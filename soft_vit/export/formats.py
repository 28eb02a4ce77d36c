"""Write a model in each format, and open the file as a function."""

import importlib
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from soft_vit.engine.errors import one_line
from soft_vit.export.model import ExportModel
from soft_vit.ops.numerics import check_choice

__all__ = ["FORMATS", "MIN_SIDE", "Format", "Run", "check_suffix", "open_onnx"]

Run = Callable[[Tensor], list[Tensor]]
"""An exported model: images `[B, C, H, W]` to its outputs."""

MAX_BATCH = 4096
MAX_SIDE = 4096
MIN_SIDE = 64
"""The least side of an image of any size: a map of one token takes another path, and here the last map has four."""
METADATA_FILE = "metadata.json"


@dataclass(frozen=True)
class Format:
    """suffix: of the files. write: writes a model to a path. open: opens a file as a function. any_size: whether a file
    can take images of any size."""

    suffix: str
    write: Callable[..., None]
    open: Callable[[Path], Run]
    any_size: bool


def check_suffix(path: Path, format: str) -> None:
    """Raise ValueError for an unknown format and for a path without its suffix."""
    check_choice("format", format, tuple(FORMATS))
    suffix = FORMATS[format].suffix
    if path.suffix != suffix:
        raise ValueError(f"{path} does not end in {suffix}, the suffix of {format}; give such a name.")


def example(source: ExportModel) -> Tensor:
    """Two images to capture a model with: torch.export would fix a batch of one."""
    return torch.zeros(2, *source.input_size)


def capture(source: ExportModel, any_size: bool = False) -> torch.export.ExportedProgram:
    """The graph of a model for any batch and, with any_size, for sides of 64 pixels and more.

    Raises ValueError for a model whose graph depends on the image size.
    """
    dim = torch.export.Dim
    shapes = {0: dim("batch", min=1, max=MAX_BATCH)}
    if any_size:
        shapes |= {side: dim(name, min=MIN_SIDE, max=MAX_SIDE) for side, name in ((2, "height"), (3, "width"))}
    try:
        return torch.export.export(source.model, (example(source),), dynamic_shapes=(shapes,))
    except Exception as error:
        # torch.export raises errors of many types.
        if not any_size:
            raise ValueError(f"torch.export cannot capture {source.name} ({one_line(error)}).") from error
        raise ValueError(
            f"{source.name} cannot be exported for images of any size ({one_line(error)}); export it for one size, "
            "with --img-size."
        ) from error


def write_torch_export(source: ExportModel, path: Path, any_size: bool = False, opset: int | None = None) -> None:
    """Write a program of torch.export with its metadata as a file inside; opset is ignored. See `capture` for
    errors."""
    files = {METADATA_FILE: json.dumps(source.metadata(), indent=2)}
    program = capture(source, any_size)
    for node in program.graph.nodes:
        # Names files of this machine.
        node.meta.pop("stack_trace", None)
    torch.export.save(program, path, extra_files=files)


def open_torch_export(path: Path) -> Run:
    """A file of `write_torch_export` as a function."""
    return _as_list(torch.export.load(path).module())


def write_torchscript(source: ExportModel, path: Path, any_size: bool = False, opset: int | None = None) -> None:
    """Write a trace for one image size with its metadata as a file inside; any_size and opset are ignored.

    Raises ValueError for a model that cannot be traced.
    """
    with torch.no_grad(), warnings.catch_warnings():
        # A trace fixes sizes on purpose.
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        warnings.simplefilter("ignore", FutureWarning)
        try:
            traced = torch.jit.trace(source.model, example(source), check_trace=False)
        except Exception as error:
            # The tracer raises errors of many types.
            raise ValueError(f"{source.name} cannot be traced for TorchScript ({one_line(error)}).") from error
        files = {METADATA_FILE: json.dumps(source.metadata(), indent=2)}
        torch.jit.save(traced, str(path), _extra_files=files)


def open_torchscript(path: Path) -> Run:
    """A file of `write_torchscript` as a function."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return _as_list(torch.jit.load(str(path)))


def require_onnx() -> None:
    """Raise ValueError for a missing package of ONNX."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise ValueError(f"ONNX needs {package}; pip install 'soft_vit[export]' installs it.") from error


def first_cause(error: BaseException) -> str:
    """The first sentence of the original error, which torch wraps in long reports."""
    while error.__cause__ is not None:
        error = error.__cause__
    return one_line(error).split(". ")[0]


@contextmanager
def without_logs() -> Iterator[None]:
    """Keep logs silent: torch and onnxscript log a failed conversion with its traceback, and go on."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def write_onnx(source: ExportModel, path: Path, any_size: bool = False, opset: int | None = None) -> None:
    """Write an ONNX file with weights inside and the metadata as properties; opset None is torch's default.

    Raises ValueError for a missing package of ONNX, a model that cannot be captured or translated, and an opset that
    torch does not write.
    """
    require_onnx()
    program = capture(source, any_size)
    try:
        with without_logs():
            onnx_program = torch.onnx.export(
                program,
                dynamo=True,
                opset_version=opset,
                input_names=["images"],
                output_names=list(source.outputs),
                verbose=False,
            )
    except Exception as error:
        raise ValueError(
            f"{source.name} cannot be translated to ONNX ({first_cause(error)}); choose another opset or format."
        ) from error
    made = onnx_program.model.opset_imports[""]
    if opset not in (None, made):
        raise ValueError(f"torch wrote opset {made} instead of {opset}; leave --opset out, or give {made}.")
    for node in onnx_program.model.graph.all_nodes():
        # Names files of this machine, and outweighs a small model.
        node.metadata_props.clear()
    onnx_program.model.metadata_props.update(source.metadata())
    onnx_program.save(path, external_data=False)


def open_onnx(path: Path) -> Run:
    """A file of `write_onnx` as a function, by onnxruntime on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # Only fatal errors: it also raises others, and its optimizer warns about constants.
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda images: [torch.from_numpy(output) for output in session.run(None, {name: images.numpy()})]


def _as_list(module: Callable[[Tensor], Tensor | tuple[Tensor, ...]]) -> Run:
    def run(images: Tensor) -> list[Tensor]:
        with torch.no_grad():
            outputs = module(images)
        return [outputs] if isinstance(outputs, Tensor) else list(outputs)

    return run


FORMATS = {
    "onnx": Format(".onnx", write_onnx, open_onnx, any_size=True),
    "torch_export": Format(".pt2", write_torch_export, open_torch_export, any_size=True),
    "torchscript": Format(".pt", write_torchscript, open_torchscript, any_size=False),
}
"""The formats of exported models by name: suffix, writer, reader, and whether images of any size are possible."""
