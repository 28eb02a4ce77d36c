"""Writing a model in each format, and opening the file again as a function."""

import importlib
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from soft_vit.engine.errors import UserError, as_user_error, one_line
from soft_vit.export.subject import Subject
from soft_vit.ops.numerics import check_choice

__all__ = ["FORMATS", "MIN_SIDE", "Format", "Run", "check_suffix", "open_onnx"]

Run = Callable[[Tensor], list[Tensor]]
"""A model from a file: images `[B, C, H, W]` to its outputs."""

MAX_BATCH = 4096
MAX_SIDE = 4096
# Maps of one token take another path, so the last of them, of stride 32, has at least two a side.
MIN_SIDE = 64
METADATA_FILE = "metadata.json"


@dataclass(frozen=True)
class Format:
    """suffix: of the files. write: a subject to a path. open: such a file as a function. any_size: can take images of
    other sizes than it was made for."""

    suffix: str
    write: Callable[..., None]
    open: Callable[[Path], Run]
    any_size: bool


def check_suffix(path: Path, format: str) -> None:
    """UserError unless there is such a format, and the path ends as its files do."""
    with as_user_error():
        check_choice("format", format, tuple(FORMATS))
    suffix = FORMATS[format].suffix
    if path.suffix != suffix:
        raise UserError(f"{path} does not end in {suffix}, as files of {format} do; give such a name.")


def example(subject: Subject) -> Tensor:
    """Images to capture a model with; two of them, because torch.export would take a batch of one for fixed."""
    return torch.zeros(2, *subject.input_size)


def capture(subject: Subject, any_size: bool = False) -> torch.export.ExportedProgram:
    """The graph of a model for any batch and, with any_size, for images of any sides from 64 pixels up.

    Raises UserError for a model whose graph depends on the size of its images.
    """
    dim = torch.export.Dim
    shapes = {0: dim("batch", min=1, max=MAX_BATCH)}
    if any_size:
        shapes |= {side: dim(name, min=MIN_SIDE, max=MAX_SIDE) for side, name in ((2, "height"), (3, "width"))}
    try:
        return torch.export.export(subject.model, (example(subject),), dynamic_shapes=(shapes,))
    except Exception as error:
        # torch.export reports by many types what a graph depends on.
        if not any_size:
            raise UserError(f"torch.export cannot capture {subject.name} ({one_line(error)}).") from error
        raise UserError(
            f"{subject.name} cannot be exported for images of any size ({one_line(error)}); export it for one size, "
            "with --img-size."
        ) from error


def write_torch_export(subject: Subject, path: Path, any_size: bool = False, opset: int | None = None) -> None:
    """Write a program of torch.export, its metadata as a file inside; opset is not read. Raises what `capture` does."""
    files = {METADATA_FILE: json.dumps(subject.metadata(), indent=2)}
    program = capture(subject, any_size)
    for node in program.graph.nodes:
        # It names files of this machine.
        node.meta.pop("stack_trace", None)
    torch.export.save(program, path, extra_files=files)


def open_torch_export(path: Path) -> Run:
    """A file of `write_torch_export` as a function."""
    return _as_list(torch.export.load(path).module())


def write_torchscript(subject: Subject, path: Path, any_size: bool = False, opset: int | None = None) -> None:
    """Write a trace for images of the subject's size, its metadata as a file inside; any_size and opset are not read.

    UserError for a model that cannot be traced.
    """
    with torch.no_grad(), warnings.catch_warnings():
        # Sizes are fixed by tracing, and meant to be.
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        warnings.simplefilter("ignore", FutureWarning)
        try:
            traced = torch.jit.trace(subject.model, example(subject), check_trace=False)
        except Exception as error:
            # What the tracer meets in a model's Python has no common type.
            raise UserError(f"{subject.name} cannot be traced for TorchScript ({one_line(error)}).") from error
        files = {METADATA_FILE: json.dumps(subject.metadata(), indent=2)}
        torch.jit.save(traced, str(path), _extra_files=files)


def open_torchscript(path: Path) -> Run:
    """A file of `write_torchscript` as a function."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return _as_list(torch.jit.load(str(path)))


def require_onnx() -> None:
    """UserError where what writes, reads or runs ONNX is not installed."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise UserError(f"ONNX needs {package}; pip install 'soft_vit[export]' brings it.") from error


def first_cause(error: BaseException) -> str:
    """The first sentence of the error that others were raised from, which torch wraps in reports of many lines."""
    while error.__cause__ is not None:
        error = error.__cause__
    return one_line(error).split(". ")[0]


def write_onnx(subject: Subject, path: Path, any_size: bool = False, opset: int | None = None) -> None:
    """Write an ONNX file, weights inside, with the metadata as its properties; opset None is that of torch.

    UserError where a package for ONNX is missing, the model cannot be captured or translated, or torch does not write
    that opset.
    """
    require_onnx()
    program = capture(subject, any_size)
    try:
        onnx_program = torch.onnx.export(
            program,
            dynamo=True,
            opset_version=opset,
            input_names=["images"],
            output_names=list(subject.outputs),
            verbose=False,
        )
    except Exception as error:
        raise UserError(
            f"{subject.name} cannot be translated to ONNX ({first_cause(error)}); choose another opset or format."
        ) from error
    made = onnx_program.model.opset_imports[""]
    if opset not in (None, made):
        # torch writes the version that it knows, says so in its log, and goes on.
        raise UserError(f"torch wrote opset {made} in the place of {opset}; leave --opset out, or give a newer one.")
    for node in onnx_program.model.graph.all_nodes():
        # It names files of this machine, and is longer than the weights of a small model.
        node.metadata_props.clear()
    onnx_program.model.metadata_props.update(subject.metadata())
    onnx_program.save(path, external_data=False)


def open_onnx(path: Path) -> Run:
    """A file of `write_onnx` as a function, by onnxruntime on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # Warnings of its optimizer about what it folds.
    options.log_severity_level = 3
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
    # A trace holds the sizes that it saw.
    "torchscript": Format(".pt", write_torchscript, open_torchscript, any_size=False),
}
