"""Predictions for many images: read, predicted, drawn, written; nothing that was done is lost."""

import io
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from PIL import Image
from tqdm import tqdm

from soft_vit.data.images import BadImage
from soft_vit.engine.errors import UserError, one_line
from soft_vit.prediction.inputs import FreeNames, Input, find_inputs, read_input, shown
from soft_vit.prediction.results import ClassMap, Painter, Predictor, Result
from soft_vit.prediction.results_file import ResultsFile
from soft_vit.weights.files import write_atomically

__all__ = ["RESULTS", "Report", "predict_files"]

# The file with all results, in the folder of results.
RESULTS = "predictions.json"
JPEG_QUALITY = 92


@dataclass
class Report:
    """What a run of predictions ends with: how many of how many images, and which could not be read or predicted."""

    out: Path
    images: int
    predicted: int = 0
    failed: list[str] = field(default_factory=list)
    # For a single image, the prediction.
    lines: list[str] = field(default_factory=list)
    # What had to be changed in the model's weights.
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False

    def __str__(self) -> str:
        lines = [f"Note: {note}" for note in self.notes]
        if self.images == 1 and self.predicted:
            lines += self.lines
        else:
            start = "Interrupted: " if self.interrupted else ""
            lines.append(f"{start}{self.predicted} of {self.images} images predicted.")
        if self.failed:
            lines.append(f"{len(self.failed)} failed:")
            lines += [f"  {name}" for name in self.failed]
        return "\n".join([*lines, f"Written: {self.out}"])

    @property
    def exit_code(self) -> int:
        """0 when there is something to look at, 1 when there is nothing, 130 after an interruption."""
        if self.interrupted:
            return 128 + signal.SIGINT
        return 0 if self.predicted else 1


def predict_files(
    given: Sequence[str | Path],
    load: Callable[[], Predictor],
    out: str | Path,
    *,
    painter: Painter,
    draw: bool = True,
    batch_size: int = 8,
    source: dict[str, Any] | None = None,
) -> Report:
    """Predict for files, folders and patterns, and write `predictions.json` and a drawing for each image into a folder.

    given: see `find_inputs`. load: gives the predictor, and is called when the images have been found. painter: draws
    results. draw: False for no drawings; a map of classes is written all the same. source: what the JSON file says of
    the model.

    A file that cannot be read, and an image that the model refuses, are reported, and the run goes on. When it is
    interrupted or asked to end (SIGTERM), the results so far are in the file. Raises UserError (a ValueError) or
    FileNotFoundError for what cannot be used.
    """
    if batch_size < 1:
        raise UserError(f"batch_size is {batch_size}; give a number of images from 1 on.")
    out = Path(out).expanduser()
    inputs = find_inputs(given, out)
    with _writing_to(out):
        # Before a model is loaded for nothing.
        out.mkdir(parents=True, exist_ok=True)
    predictor = load()
    report = Report(out, len(inputs), notes=predictor.notes)
    results = ResultsFile(out / RESULTS, source or {})
    names = FreeNames(out, [RESULTS])
    bar = tqdm(total=len(inputs), unit="image", disable=len(inputs) == 1)
    with _writing_to(out), _sigterm_interrupts(), bar:
        try:
            for batch in _batches(inputs, batch_size):
                for item, image, found in _predicted(predictor, batch):
                    if isinstance(found, Exception):
                        reason = " ".join(str(found).split())
                        results.add_failure(shown(item.path), reason)
                        report.failed.append(f"{shown(item.path)}: {reason}")
                    else:
                        entry = {"image": shown(item.path), "width": image.width, "height": image.height}
                        entry |= _write_pictures(item.name, image, found, names, painter, draw)
                        results.add(found.task, {**entry, "predictions": found.entries()})
                        report.predicted += 1
                        report.lines = found.lines() if len(inputs) == 1 else []
                    bar.update()
                results.write_if_due()
        except KeyboardInterrupt:
            report.interrupted = True
        finally:
            results.write()
    return report


def _batches(items: Sequence[Input], size: int) -> Iterator[Sequence[Input]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _predicted(
    predictor: Predictor, batch: Sequence[Input]
) -> list[tuple[Input, Image.Image | None, Result | Exception]]:
    """Each image with its result, or with the reason why it has none, in the order given."""
    images: dict[Input, Image.Image] = {}
    found: dict[Input, Result | Exception] = {}
    for item in batch:
        try:
            images[item] = read_input(item.path)
        except BadImage as error:
            found[item] = error
    if images:
        found |= zip(images, _results(predictor, list(images.values())), strict=True)
    return [(item, images.get(item), found[item]) for item in batch]


def _results(predictor: Predictor, images: list[Image.Image]) -> Sequence[Result | Exception]:
    """A result for each image, or the reason why the model refuses it."""
    try:
        return predictor(images)
    except UserError:
        raise
    except torch.cuda.OutOfMemoryError as error:
        raise UserError(
            f"The GPU has no memory for {len(images)} images at once; give a smaller --batch-size or --device cpu."
        ) from error
    except Exception as error:
        # An image may be too small, or a model want all images of a batch in one size; each has its own way of
        # refusing, which is no reason to end a run over thousands of others.
        if len(images) == 1:
            return [ValueError(f"the model refuses it ({type(error).__name__}: {one_line(error)})")]
        return [result for image in images for result in _results(predictor, [image])]


def _write_pictures(
    name: PurePosixPath, image: Image.Image, result: Result, names: FreeNames, painter: Painter, draw: bool
) -> dict[str, str]:
    """Write what can be looked at; returns the names of the files."""
    written = {}
    if draw:
        suffix = "" if name.suffix.lower() in (".jpg", ".jpeg", ".png") else ".png"
        written["drawing"] = names.take(name.with_name(name.name + suffix))
        _save(names.folder / written["drawing"], result.draw(painter, image))
    if isinstance(result, ClassMap):
        written["map"] = names.take(name.with_name(name.name + ".classes.png"))
        _save(names.folder / written["map"], painter.index_image(result.classes))
    return written


def _save(path: Path, picture: Image.Image) -> None:
    stream = io.BytesIO()
    if path.suffix.lower() == ".png":
        picture.save(stream, "PNG")
    else:
        picture.save(stream, "JPEG", quality=JPEG_QUALITY)
    write_atomically(path, stream.getvalue())


@contextmanager
def _writing_to(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"Results cannot be written to {out} ({error}); give another folder with --out.") from error


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Let a request to end, as clusters send it, be what Ctrl-C is."""
    if threading.current_thread() is not threading.main_thread():
        # Only there may Python listen.
        yield
        return
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
