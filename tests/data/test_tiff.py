"""TIFF files that are read by window, and label maps that lie where they lie."""

import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from predict.test_predict import Rows

from soft_vit.data.images import BadImage
from soft_vit.predict import predict_files

tifffile = pytest.importorskip("tifffile")
from soft_vit.data.tiff import TiffImage  # noqa: E402  needs the package

PIXELS = np.random.default_rng(0).integers(0, 255, (217, 331, 3), np.uint8)
PLACE = [(33550, 12, 3, (0.5, 0.5, 0.0)), (33922, 12, 6, (0, 0, 0, 4e5, 5e6, 0)), (34735, 3, 4, (1, 1, 0, 0))]
PLACE += [(34736, 12, 1, (6378137.0,)), (34737, 2, 8, "WGS 84|")]

# How a file is written, its pixels, and the bits to read it with.
FILES = [({"tile": (64, 32), "compression": "lzw"}, PIXELS, None), ({"rowsperstrip": 13}, PIXELS, None)]
FILES += [({"planarconfig": "separate", "tile": (48, 64)}, PIXELS.transpose(2, 0, 1), None)]
FILES += [({"tile": (64, 64), "photometric": "minisblack"}, PIXELS[..., 0], None)]
FILES += [({"bigtiff": True}, (PIXELS.astype(np.uint16) << 4) + 7, 12), ({}, np.dstack([PIXELS, PIXELS[..., 0]]), None)]


def written(path: Path, values: np.ndarray, **options) -> Path:
    tifffile.imwrite(path, values, **{"photometric": "rgb", "metadata": None, **options})
    return path


@pytest.mark.parametrize(("options", "values", "bits"), FILES)
def test_windows_are_those_of_the_image(tmp_path, options, values, bits):
    image = TiffImage(written(tmp_path / "a.tif", values, **options), bits)
    expected = PIXELS if options.get("photometric") != "minisblack" else PIXELS[..., [0, 0, 0]]
    assert image.size == (331, 217)
    for x0, y0, x1, y1 in ((0, 0, 331, 217), (31, 47, 130, 49), (330, 216, 331, 217)):
        assert np.array_equal(np.asarray(image.crop((x0, y0, x1, y1))), expected[y0:y1, x0:x1])
    assert image.reduce(4) == Image.fromarray(expected).resize((83, 55), Image.Resampling.BOX)


def test_an_image_that_is_no_longer_used_frees_its_tiles(tmp_path):
    """At once: the garbage collector would let tens of images wait."""
    tile = weakref.ref(TiffImage(written(tmp_path / "a.tif", PIXELS, tile=(64, 64)))._segment(0, 0))
    assert tile() is None


def test_a_drawing_comes_from_a_smaller_level(tmp_path):
    with tifffile.TiffWriter(tmp_path / "a.tif") as file:
        file.write(PIXELS, subifds=1, photometric="rgb", tile=(64, 64))
        file.write(np.full_like(PIXELS[::2, ::2], 9), subfiletype=1, photometric="rgb", tile=(64, 64))
    image = TiffImage(tmp_path / "a.tif")
    assert np.array_equal(np.asarray(image.crop((0, 0, 331, 217))), PIXELS)
    assert set(np.asarray(image.reduce(2)).ravel()) == {9}


def test_labels_lie_where_the_image_lies(tmp_path):
    path = written(tmp_path / "a.tif", PIXELS, extratags=[(*tag, True) for tag in PLACE], tile=(64, 64))
    predict_files([path], Rows, tmp_path / "out")
    with tifffile.TiffFile(tmp_path / "out/a.tif.classes.tif") as file:
        (page,) = file.pages
        assert np.array_equal(page.asarray(), PIXELS[..., 0] > 127)
        assert [(tag.code, tag.dtype, tag.count, tag.value) for tag in page.tags if tag.code > 33000] == PLACE


OTHERS = [
    (PIXELS, {}, 99_999, "99999"),
    (PIXELS, {}, 5, "TIFF"),
    (PIXELS.astype(np.uint16), {}, None, "--bits"),
    (PIXELS.astype(np.float32), {}, None, "float32"),
    (PIXELS[..., 0] % 16, {"photometric": "minisblack", "bitspersample": 4}, None, "got 4"),
    (np.dstack([PIXELS] * 3), {"photometric": "minisblack", "planarconfig": "contig"}, None, "9 samples"),
    (np.stack([PIXELS] * 3), {}, None, "3 pages"),
    (PIXELS, {"extratags": [(274, 3, 1, 6, True)]}, None, "orientation 6"),
]


@pytest.mark.parametrize(("values", "options", "cut", "key"), OTHERS)
def test_other_files_are_refused(tmp_path, values, options, cut, key):
    path = written(tmp_path / "a.tif", values, **options)
    if cut:
        path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(BadImage, match=key):
        TiffImage(path)
    assert key in predict_files([path], Rows, tmp_path / "out").results["failed"][0]["reason"]


def test_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tifffile", None)
    monkeypatch.delitem(sys.modules, "soft_vit.data.tiff")
    with pytest.raises(ImportError, match="tifffile"):
        predict_files([written(tmp_path / "a.tif", PIXELS)], Rows, tmp_path / "out")
