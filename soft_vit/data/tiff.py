"""Read windows of large TIFF files, and write label maps that lie where their image lies.

Letters: H and W height and width in pixels, S samples of a pixel.
"""

import math
import os
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import tifffile
from PIL import Image

from soft_vit.data.images import BadImage

# GeoTIFF (OGC 19-008r4): scale, tie points, transformation, keys and their values.
_PLACE_TAGS = (33550, 33922, 34264, 34735, 34736, 34737)
# Of decoded tiles or strips, which windows share.
_CACHE_BYTES = 2**28
_BLACK_IS_ZERO, _RGB, _YCBCR, _JPEG, _ORIENTATION = 1, 2, 6, 7, 274


class TiffImage:
    """An RGB or grey image in a TIFF file, of which windows are read: in tiles or strips, pyramidal, BigTIFF, GeoTIFF.

    It has `size` (W, H), `crop` and `reduce` of a Pillow image. bits: of the values in files of 16 bits. Raises
    BadImage for other files, and for a file that ends early.
    """

    def __init__(self, path: str | Path, bits: int | None = None) -> None:
        self.bits = bits
        try:
            self.file = tifffile.TiffFile(path)
            series = self.file.series[0]
            self.levels = [level.pages[0] for level in series.levels]
            self.page = page = self.levels[0]
            end = max(map(sum, zip(page.dataoffsets, page.databytecounts, strict=True)))
        except Exception as error:
            # Damaged tags raise errors of any kind.
            raise BadImage(f"not a TIFF image that can be read ({error})") from error
        if end > (length := os.path.getsize(path)):
            raise BadImage(f"the file ends after {length} of {end} bytes")
        colours = page.photometric
        grey, rgb = colours == _BLACK_IS_ZERO and page.samplesperpixel <= 2, colours == _RGB
        if len(series.pages) > 1 or not (grey or rgb or (colours == _YCBCR and page.compression == _JPEG)):
            what = f"{len(series.pages)} pages of {page.samplesperpixel} samples ({colours.name})"
            raise BadImage(f"it must have one page in RGB or grey, got {what}")
        if page.dtype == np.uint16 and bits is None:
            raise BadImage("its values have 16 bits; give the number of bits in use by --bits")
        if page.dtype not in (np.uint8, np.uint16) or np.min(page.bitspersample) < 8:
            raise BadImage(f"its values must have 8 or 16 bits, got {page.bitspersample} ({page.dtype})")
        if (turned := page.tags.valueof(_ORIENTATION, 1)) != 1:
            raise BadImage(f"its pixels must be stored upright to be read by window, got orientation {turned}")
        self.size = page.imagewidth, page.imagelength
        self.width, self.height = self.size
        bytes_each = math.prod(page.chunks) * page.dtype.itemsize
        # Not of a method: a cycle would keep the tiles of many images until the garbage collector runs.
        self._segment = lru_cache(max(_CACHE_BYTES // bytes_each, 1))(partial(_decode, self.file, self.levels))

    def crop(self, box: Sequence[int]) -> Image.Image:
        """Return the pixels of a box (x0, y0, x1, y1) inside the image. Raises BadImage for damaged ones."""
        return self._read(0, *box)

    def reduce(self, factor: int) -> Image.Image:
        """Return the image, its sides divided by a factor; from a smaller level of the pyramid if there is one."""
        wanted = tuple(math.ceil(side / factor) for side in self.size)
        fine = [i for i, page in enumerate(self.levels) if page.imagewidth >= wanted[0]]
        width, height = self.levels[fine[-1]].imagewidth, self.levels[fine[-1]].imagelength
        picture, rows = Image.new("RGB", wanted), max(2**24 // width, factor)
        for top in range(0, wanted[1], step := max(rows * wanted[1] // height, 1)):
            bottom = min(top + step, wanted[1])
            ends = [y * height // wanted[1] for y in (top, bottom)]
            strip = self._read(fine[-1], 0, ends[0], width, ends[1])
            picture.paste(strip.resize((wanted[0], bottom - top), Image.Resampling.BOX), (0, top))
        return picture

    def _read(self, level: int, x0: int, y0: int, x1: int, y1: int) -> Image.Image:
        page = self.levels[level]
        rows, columns = page.chunks[:2] if page.is_tiled else (page.rowsperstrip, page.imagewidth)
        across, down = math.ceil(page.imagewidth / columns), math.ceil(page.imagelength / rows)
        planes = page.samplesperpixel if page.planarconfig == 2 else 1
        pixels = np.zeros((y1 - y0, x1 - x0, page.samplesperpixel), page.dtype)
        for plane in range(planes):
            for row in range(y0 // rows, math.ceil(y1 / rows)):
                for column in range(x0 // columns, math.ceil(x1 / columns)):
                    if (part := self._segment(level, (plane * down + row) * across + column)) is None:
                        continue
                    top, left = row * rows, column * columns
                    part = part[max(y0 - top, 0) : y1 - top, max(x0 - left, 0) : x1 - left]
                    top, left = max(top - y0, 0), max(left - x0, 0)
                    target = pixels[top : top + part.shape[0], left : left + part.shape[1]]
                    target[..., plane : plane + part.shape[2]] = part
        pixels = pixels[..., :3] if pixels.shape[-1] >= 3 else pixels[..., [0, 0, 0]]
        if pixels.dtype == np.uint16:
            if pixels.max() >> self.bits:
                raise BadImage(f"its values reach {pixels.max()}, more than {2**self.bits - 1} for bits={self.bits}")
            pixels = (pixels >> (self.bits - 8)).astype(np.uint8)
        return Image.fromarray(np.ascontiguousarray(pixels))

    def write_labels(self, path: str | Path, classes: np.ndarray, colors: np.ndarray) -> None:
        """Write classes `[H, W]` as a tiled TIFF that lies where this image lies; colors: uint8 `[256, 3]`."""
        tags = [self.page.tags[code] for code in _PLACE_TAGS if code in self.page.tags]
        options = dict(tile=(256, 256), compression="zlib", metadata=None)
        options["extratags"] = [(tag.code, tag.dtype, tag.count, tag.value, True) for tag in tags]
        if classes.dtype == np.uint8:
            options |= dict(photometric="palette", colormap=257 * colors.T.astype(np.uint16))
        temporary = Path(f"{path}.tmp")
        temporary.parent.mkdir(parents=True, exist_ok=True)
        try:
            tifffile.imwrite(temporary, classes, **options)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def _decode(file: tifffile.TiffFile, levels: Sequence[tifffile.TiffPage], level: int, index: int) -> np.ndarray | None:
    """Return a tile or strip `[h, w, S]`, None where the file holds nothing. Raises BadImage."""
    page = levels[level]
    file.filehandle.seek(page.dataoffsets[index])
    data = file.filehandle.read(page.databytecounts[index])
    try:
        part, _, shape = page.decode(data or None, index, jpegtables=page.jpegtables, jpegheader=page.jpegheader)
    except Exception as error:
        raise BadImage(f"its part {index} is damaged ({error})") from error
    return None if part is None else part[0, : shape[1], : shape[2]]
