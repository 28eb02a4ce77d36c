"""Images on disk through a loader with workers: odd files load, bad ones are skipped, counted and named."""

import struct
import zlib
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from crafted import encoded
from mmengine.dataset import RepeatDataset, default_collate
from PIL import Image
from torch.utils.data import DataLoader

from soft_vit.engine.data.bad_images import BadImagesHook
from soft_vit.engine.data.datasets import ImageTree
from soft_vit.engine.resume.position import BatchPositionHook

PIPELINE = [{"type": "TimmEvalCrop", "img_size": 32}, {"type": "mmpretrain.PackInputs", "meta_keys": ("img_path",)}]


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


PHOTO = Image.fromarray(noise(40, 52, 3))
JPEG, PNG = encoded(PHOTO, "JPEG"), encoded(PHOTO, "PNG")


def png_header(width: int, height: int) -> bytes:
    """A PNG of nothing but the claim of its size."""
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))


FRAMES = [Image.fromarray(noise(40, 52, 3)), Image.fromarray(255 - noise(40, 52, 3))]
# Content by file name, and whether it is an image.
ODD: dict[str, tuple[bytes, bool]] = {
    "truncated.jpg": (JPEG[: len(JPEG) // 2], False),
    "only_header.jpg": (JPEG[:20], False),
    "truncated.png": (PNG[: len(PNG) // 2], False),
    "flipped_bytes.png": (PNG[:60] + bytes(255 - value for value in PNG[60:200]) + PNG[200:], False),
    "png_named.jpg": (PNG, True),
    "jpeg_named.png": (JPEG, True),
    "empty.jpg": (b"", False),
    "zeros.jpg": (b"\0" * 5000, False),
    "text.jpg": (b"<html>404 Not Found</html>", False),
    "cmyk.jpg": (encoded(PHOTO.convert("CMYK"), "JPEG"), True),
    "grey.jpg": (encoded(PHOTO.convert("L"), "JPEG"), True),
    "sixteen_bits.png": (encoded(Image.fromarray(noise(40, 52).astype(np.uint16) * 257), "PNG"), True),
    "palette.png": (encoded(PHOTO.convert("P"), "PNG", transparency=b"\0\1\2"), True),
    "grey_alpha.png": (encoded(PHOTO.convert("LA"), "PNG"), True),
    "alpha.png": (encoded(PHOTO.convert("RGBA"), "PNG"), True),
    "one_bit.png": (encoded(PHOTO.convert("1"), "PNG"), True),
    "animated.gif": (encoded(FRAMES[0], "GIF", save_all=True, append_images=FRAMES[1:]), True),
    "animated.webp": (encoded(FRAMES[0], "WEBP", save_all=True, append_images=FRAMES[1:]), True),
    "one_pixel.png": (encoded(PHOTO.crop((0, 0, 1, 1)), "PNG"), True),
    "huge_header.png": (png_header(60000, 60000), False),
    "large_header.png": (png_header(9000, 9000), False),
    "float.tiff": (encoded(PHOTO.convert("F"), "TIFF"), False),
    "multipage.tiff": (encoded(FRAMES[0], "TIFF", save_all=True, append_images=FRAMES[1:]), True),
    "half.webp": (encoded(PHOTO, "WEBP")[:300], False),
}
BAD = {f"b/{name}" for name, (_, good) in ODD.items() if not good}


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """A fifth of the files is odd: truncated, mislabelled, of another mode, no image at all."""
    root = tmp_path_factory.mktemp("tree")
    for label, name in enumerate("ab"):
        folder = root / "train" / name
        folder.mkdir(parents=True)
        for i in range(2 * len(ODD)):
            (folder / f"{i:03}.jpg").write_bytes(encoded(PHOTO.crop((0, 0, 30 + label, 40)), "JPEG"))
    for name, (data, _) in ODD.items():
        (root / "train" / "b" / name).write_bytes(data)
    (root / "train" / "b" / "folder.jpg").mkdir()
    return root


def read_all(dataset: ImageTree, workers: int) -> list[str]:
    timeout = 60 if workers else 0
    loader = DataLoader(dataset, batch_size=16, num_workers=workers, collate_fn=default_collate, timeout=timeout)
    names = []
    for batch in loader:
        assert batch["inputs"].shape[1:] == (3, 32, 32)
        assert batch["inputs"].dtype == torch.uint8
        names += [sample.img_path for sample in batch["data_samples"]]
    return names


def test_odd_files_load_and_bad_ones_are_replaced_named_and_counted(tree):
    """Too many of them stop the run, also inside of wrappers."""
    dataset = ImageTree(str(tree), pipeline=PIPELINE)
    names = read_all(dataset, 2)
    assert len(names) == len(dataset) == 5 * len(ODD)
    assert not set(names) & BAD
    assert {f"b/{name}" for name, (_, good) in ODD.items() if good} <= set(names)
    assert {dataset.why_bad(index).split(":")[0] for index in dataset.bad_images()} == BAD

    wrapped, logger = RepeatDataset({"type": "ConcatDataset", "datasets": [dataset]}, times=2), Mock()
    told = f"{len(BAD)} of {len(dataset)}"
    runner = SimpleNamespace(train_dataloader=SimpleNamespace(dataset=wrapped), logger=logger, iter=99)
    hook = BadImagesHook(max_share=0.2)
    for _ in range(2):
        hook.after_train_iter(runner, 0)
        hook.after_train_epoch(runner)
    log = [call.args[0] for call in logger.warning.call_args_list]
    assert [sum(name in line for line in log) for name in BAD] == [1] * len(BAD)
    assert told in log[-1]
    with pytest.raises(ValueError, match=told):
        BadImagesHook().after_train_epoch(runner)

    # A resumed run goes on counting: the data set has read nothing yet, and the hook of the checkpoint has seen all.
    fresh = ImageTree(str(tree), pipeline=PIPELINE)
    loader = DataLoader(fresh, batch_size=16)
    resumed = BadImagesHook(max_share=0.01)
    settings = {"world_size": 1, "logger": logger, "iter": 99, "max_iters": 100, "_resume": True}
    checkpoint = {"meta": {}, "message_hub": {"runtime_info": {}}}
    for one in (hook, resumed):
        runner = SimpleNamespace(train_dataloader=loader, hooks=[one], **settings)
        keeper = BatchPositionHook()
        (keeper.before_save_checkpoint if one is hook else keeper.after_load_checkpoint)(runner, checkpoint)
    with pytest.raises(ValueError, match=told):
        resumed.after_train_iter(runner, 0)


def test_a_test_keeps_its_number_of_images(tree):
    dataset = ImageTree(str(tree), pipeline=PIPELINE, test_mode=True)
    assert len(set(read_all(dataset, 0))) == len(dataset)
    assert len(dataset.bad_images()) == len(BAD)
    index = dataset.bad_images()[0]
    assert not dataset[index]["inputs"].any()
    assert dataset[index]["data_samples"].gt_label.item() == 1


def test_files_that_went_away(tmp_path):
    """The next image stands in, as long as there is one."""
    for name in "ab":
        (tmp_path / "train" / name).mkdir(parents=True)
        for number in range(3):
            (tmp_path / "train" / name / f"{number}.png").write_bytes(PNG if number else b"")
    dataset = ImageTree(str(tmp_path), pipeline=PIPELINE)
    for name, stands_in in (("a/1.png", "a/2.png"), ("a/2.png", "b/1.png")):
        (tmp_path / "train" / name).unlink()
        assert dataset[1]["data_samples"].img_path == stands_in
    for path in tmp_path.rglob("*.png"):
        path.unlink()
    with pytest.raises(ValueError, match="6 images"):
        dataset[1]
