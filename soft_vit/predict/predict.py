"""Predict for many images, and write results and drawings while it runs."""

import hashlib
import io
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from PIL import Image

from soft_vit.data.images import decode_image
from soft_vit.engine.drawing import class_colors, index_image
from soft_vit.ops.numerics import at_least
from soft_vit.predict.inputs import TIFF, Input, find_inputs, free_name, printable
from soft_vit.predict.predictors import Predictor
from soft_vit.predict.results import ClassMap, Result, class_map
from soft_vit.probe.cost import free_memory
from soft_vit.text_tables import one_line
from soft_vit.weights.files import write_atomically

RESULTS = "predictions.json"
"""The file in the folder of results that holds all of them."""
# Seconds between two versions of the file of results.
WRITE_EVERY = 20
# Decoding takes so many bytes of memory for a pixel.
_BYTES_OF_PIXEL = 9
# Classes, objects or parts of an image in its line.
_SHOWN = 5


@dataclass
class Outcome:
    """The outcome of `predict_files`: results has the content of `predictions.json`; done says what was done."""

    out: Path
    total: int
    results: dict[str, Any]
    interrupted: bool = False
    done: str = "predicted"

    @property
    def exit_code(self) -> int:
        """0 with predictions, 1 without any, 130 after an interruption."""
        return 128 + signal.SIGINT if self.interrupted else int(not self.results["images"])

    def __str__(self) -> str:
        count = len(self.results["images"])
        lines = [f"Note: {note}" for note in self.results["notes"]]
        lines.append(f"{'Interrupted: ' * self.interrupted}{count} of {self.total} images {self.done}.")
        return "\n".join(lines + [f"Written: {self.out}"] * bool(count))


def _line(entry: dict[str, Any]) -> str:
    """Return a line about an image: why it failed, or its first classes with their scores or shares of the pixels."""
    if "reason" in entry:
        return f"{entry['image']}: failed, {entry['reason']}"
    found = entry["predictions"]
    shown = [f"{one['class']} {100 * one.get('share', one.get('score')):.1f} %" for one in found[:_SHOWN]]
    more = [f"{len(found) - _SHOWN} more"] * (len(found) > _SHOWN)
    return f"{entry['image']}: {', '.join(shown + more) or 'nothing found'}"


def predict_files(
    given: Sequence[str | Path],
    load: Callable[[], Predictor],
    out: str | Path,
    *,
    draw: bool = True,
    batch_size: int = 8,
    bits: int | None = None,
    source: dict[str, Any] | None = None,
    notify: Callable[[str], object] = lambda line: None,
) -> Outcome:
    """Predict for images; write `predictions.json` and a drawing of each image into a folder.

    given: see `find_inputs`. load: returns the predictor, called once images are found. draw: False writes no drawings;
    label maps are always written. bits: of the values in images of 16 bits, see `soft_vit.data.images.to_rgb`; by
    default those of the predictor's test data. source: entries about the model for the JSON file. notify: receives a
    line about each image.

    With a predictor that reads windows, the rows of an image are written as they are finished, to a file `.*.part` that
    is removed at the end, and the same call continues there after it was killed. TIFF files are read by window, and
    their label maps are TIFF files that lie where their images lie. Other images are decoded, up to what fits into
    memory.

    Images that cannot be read and images for which the model raises are listed as failed, and the run continues. After
    an interruption or an error the JSON file holds the results so far. Raises ValueError for bad arguments and OSError
    for a folder that cannot be written.
    """
    at_least("batch_size", batch_size)
    out = Path(out).expanduser()
    inputs = find_inputs(given, out)
    out.mkdir(parents=True, exist_ok=True)
    predictor = load()
    if predictor.by_windows:
        batch_size = 1
    predictor.bits = bits = predictor.bits if bits is None else bits
    results = {"task": None, **(source or {}), "notes": predictor.notes, "images": [], "failed": []}
    outcome = Outcome(out, len(inputs), results)
    taken, written = {RESULTS}, time.monotonic() - WRITE_EVERY
    try:
        for start in range(0, len(inputs), batch_size):
            for item, image, found in _predict_batch(predictor, inputs[start : start + batch_size], bits, out):
                entry: dict[str, Any] = {"image": printable(item.source)}
                if isinstance(found, Exception):
                    entry["reason"] = one_line(found)
                    results["failed"].append(entry)
                else:
                    entry |= {"width": image.width, "height": image.height}
                    entry |= _write_pictures(out, item.name, image, found, taken, draw)
                    entry["predictions"] = found.entries()
                    results["task"] = found.task
                    results["images"].append(entry)
                    if predictor.label_type is not None:
                        part_file(out, predictor, item).unlink()
                notify(_line(entry))
            if time.monotonic() - written >= WRITE_EVERY:
                _write_json(out / RESULTS, results)
                written = time.monotonic()
    except KeyboardInterrupt:
        outcome.interrupted = True
    finally:
        _write_json(out / RESULTS, results)
    return outcome


def open_image(item: Input, bits: int | None, by_windows: bool, upright: bool | None = None) -> Any:
    """Return the image, of Pillow, or with by_windows a `TiffImage`. Raises OSError or ValueError.

    upright: see `decode_image`.
    """
    if by_windows and isinstance(item.source, Path) and item.source.suffix.lower() in TIFF:
        # Needs an extra.
        from soft_vit.data.tiff import TiffImage

        return TiffImage(item.source, bits)
    return decode_image(item.read(), free_memory() // _BYTES_OF_PIXEL, bits=bits, upright=upright)


def part_file(out: Path, predictor: Any, item: Input) -> Path:
    """Return the file of the rows of an image that are finished, whose name stands for the image and the model."""
    # What an address or a pipe gives may change from call to call.
    status = item.source.stat() if isinstance(item.source, Path) else None
    version = (status.st_size, status.st_mtime_ns) if status else os.getpid()
    known = (predictor.key, predictor.bits, predictor.upright, os.path.abspath(item.source), version)
    return out / f".{hashlib.sha256(repr(known).encode()).hexdigest()[:16]}.part"


def _predict_strips(predictor: Predictor, item: Input, image: Any, out: Path) -> ClassMap:
    """Return the classes of an image, row by row; those that are in a file already are not predicted again."""
    part, (width, height) = part_file(out, predictor, item), image.size
    append_rows(part, np.dtype((predictor.label_type, width)), partial(predictor.strips, image))
    return class_map(np.memmap(part, predictor.label_type, "r", shape=(height, width)), predictor.names)


def append_rows(part: Path, row: np.dtype, rows_from: Callable[[int], Iterator[np.ndarray]]) -> None:
    """Append to a file of whole rows what `rows_from(count)` yields, arrays of the rows after the count it holds."""
    with part.open("ab") as file:
        done = file.tell() // row.itemsize
        file.truncate(done * row.itemsize)
        for rows in rows_from(done):
            file.write(rows.tobytes())
            file.flush()


def _predict_batch(
    predictor: Predictor, batch: Sequence[Input], bits: int | None, out: Path
) -> list[tuple[Input, Image.Image | None, Result | Exception]]:
    """Return each input with its image, and its result or the error instead of it."""
    images: dict[Input, Any] = {}
    found: dict[Input, Result | Exception] = {}
    for item in batch:
        try:
            images[item] = open_image(item, bits, predictor.by_windows, predictor.upright)
        except (OSError, ValueError) as error:
            found[item] = error
    # A model may raise any error for an image: retry those of a batch one by one.
    for items in ([*images], *([item] for item in images)):
        if any(item not in found for item in items):
            try:
                if predictor.label_type is not None:
                    results = [_predict_strips(predictor, item, images[item], out) for item in items]
                else:
                    results = predictor([images[item] for item in items])
                found.update(zip(items, results, strict=True))
            except torch.cuda.OutOfMemoryError as error:
                raise ValueError(f"The GPU must have memory for {len(items)} images; lower --batch-size.") from error
            except Exception as error:
                if len(items) == 1:
                    found[items[0]] = ValueError(f"the model raised {type(error).__name__}: {one_line(error)}")
    return [(item, images.get(item), found[item]) for item in batch]


def _write_pictures(
    out: Path, name: PurePosixPath, image: Image.Image, result: Result, taken: set[str], draw: bool
) -> dict[str, str]:
    """Write the drawing and the label map of a result; return the names of the files."""
    files = {}
    if draw:
        suffix = "" if name.suffix.lower() in (".jpg", ".jpeg", ".png") else ".png"
        files["drawing"] = free_name(name.with_name(name.name + suffix), taken)
        _save(result.draw(image), out / files["drawing"])
    if isinstance(result, ClassMap):
        write_labels = getattr(image, "write_labels", None)
        files["map"] = free_name(name.with_name(f"{name.name}.classes.{'tif' if write_labels else 'png'}"), taken)
        if write_labels:
            write_labels(out / files["map"], result.classes, class_colors(256, result.names))
        else:
            _save(index_image(result.classes, result.names), out / files["map"])
    return files


def _save(picture: Image.Image, path: Path) -> None:
    stream = io.BytesIO()
    picture.save(stream, "PNG" if path.suffix.lower() == ".png" else "JPEG", quality=92, compress_level=1)
    write_atomically(path, stream.getvalue())


def _write_json(path: Path, content: dict[str, Any]) -> None:
    # One image per line.
    head = json.dumps({key: value for key, value in content.items() if key != "images"}).removesuffix("}")
    images = ",\n".join(json.dumps(entry, allow_nan=False) for entry in content["images"])
    write_atomically(path, f'{head}, "images": [\n{images}\n]}}\n'.encode())
