"""COCO's annotations and masks."""

import copy
import json

import numpy as np
import pytest
from pycocotools import mask as reference

from soft_vit.data.coco import read_coco
from soft_vit.data.coco_masks import check_segmentation, decode_segmentation, encode_masks

# Reading COCO annotations: what is kept, what is left out and named, what is refused.


HEIGHT, WIDTH = 60, 90
SQUARE = [10, 10, 30, 10, 30, 30, 10, 30]


def annotation(number=1, **changes):
    entry = {"id": number, "image_id": 7, "category_id": 5, "bbox": [10, 10, 20, 20], "area": 400, "iscrowd": 0}
    return {**entry, "segmentation": [SQUARE], **changes}


def content(*annotations, **changes):
    images = [
        {"id": 7, "file_name": "a.jpg", "height": HEIGHT, "width": WIDTH},
        {"id": 3, "file_name": "./deep//b.jpg", "height": 31, "width": 33},
    ]
    categories = [{"id": 90, "name": "ring"}, {"id": 5, "name": "star"}]
    return {"images": images, "categories": categories, "annotations": list(annotations), **changes}


@pytest.fixture
def read(tmp_path):
    def read_content(value, files=("a.jpg", "deep/b.jpg"), **options):
        path = tmp_path / "instances.json"
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        return read_coco(path, files, **options)

    return read_content


def test_labels_are_contiguous_in_the_order_of_category_ids(read):
    objects = annotation(1), annotation(2, category_id=90), annotation(3, image_id=3, bbox=[0, 0, 33, 31])
    value = content(*objects)
    value["categories"].append({"id": 7, "name": "disc"})
    found = read(value)
    assert (found.classes, found.category_ids) == (["star", "disc", "ring"], [5, 7, 90])
    first, second = found.images
    assert (first.id, first.file_name, first.height, first.width) == (7, "a.jpg", HEIGHT, WIDTH)
    np.testing.assert_array_equal(first.labels, [0, 2])
    np.testing.assert_array_equal(first.boxes, [[10, 10, 30, 30]] * 2)
    np.testing.assert_array_equal(second.boxes, [[0, 0, 33, 31]])
    # Names are compared as paths.
    assert second.file_name == "deep/b.jpg"
    assert not found.problems.sentences()


@pytest.mark.parametrize("flag", ["iscrowd", "ignore"])
@pytest.mark.parametrize("value", [1, "1", True, "true", 1.0])
def test_a_crowd_and_what_is_ignored_are_kept_for_the_evaluation_only(read, flag, value):
    absent = [0, "0", False, "False", None, "", 0.0]
    objects = [annotation(number, **{flag: no}) for number, no in enumerate(absent, 2)]
    image = read(content(annotation(1, **{flag: value}), *objects)).images[0]
    np.testing.assert_array_equal(image.trainable, [False] + [True] * len(absent))
    assert [entry["iscrowd"] for entry in image.objects] == [1] + [0] * len(absent)


SIDES = {"height": HEIGHT, "width": WIDTH}
BAD_IMAGES = [
    ("image_broken", {"id": 8, **SIDES}),
    ("image_broken", {"id": 8, "file_name": "c.jpg", "height": 0, "width": 4}),
    ("image_broken", {"id": 8, "file_name": "c.jpg", "height": None, "width": 80.5}),
    ("image_broken", {"id": 7, "file_name": "a.jpg", **SIDES}),
    ("image_missing", {"id": 8, "file_name": "c.jpg", **SIDES}),
]


def test_numbers_may_be_text_or_have_a_point_and_annotations_any_id(read):
    """Annotations are numbered, from 1: ids are names, and to COCO's evaluation 0 means that an object was missed."""
    value = content(annotation(0, image_id="7", category_id=5.0), annotation("b7", image_id=7.0), annotation(None))
    value["images"][0].update(id="7", width=90.0, height="60")
    image = read(value).images[0]
    assert (image.id, image.width, image.height) == (7, WIDTH, HEIGHT)
    found = [(entry["id"], entry["image_id"], entry["category_id"]) for entry in image.objects]
    assert found == [(1, 7, 5), (2, 7, 5), (3, 7, 5)]


@pytest.mark.parametrize(("kind", "image"), BAD_IMAGES)
def test_a_bad_image_is_counted(read, kind, image):
    value = content(annotation())
    value["images"].append(image)
    found = read(value)
    assert {problem: len(names) for problem, names in found.problems.items()} == {kind: 1}
    assert [entry.id for entry in found.images if entry.has_file] == [7, 3]


# Kind of the problem, what is changed, and whether the annotation is still there for the evaluation.
BAD_OBJECTS = [
    ("object_broken", {"bbox": [1, 2, 3]}, False),
    ("object_broken", {"bbox": [1, 2, 3, float("nan")]}, False),
    ("object_broken", {"image_id": None}, False),
    ("object_broken", {"category_id": "star"}, False),
    ("object_broken", {"id": 1}, False),
    ("object_broken", {"iscrowd": "no"}, False),
    ("object_broken", {"ignore": 2}, False),
    ("object_broken", {"bbox": "1234"}, False),
    ("object_broken", {"image_id": True}, False),
    ("image_unknown", {"image_id": 99}, False),
    ("category_unknown", {"category_id": 6}, False),
    ("box_empty", {"bbox": [5, 5, 0, 4]}, True),
    ("box_empty", {"bbox": [WIDTH, 5, 4, 4]}, True),
    ("box_empty", {"bbox": [-9, -9, 9, 9]}, True),
    ("box_clipped", {"bbox": [-5, 50, 20, 20]}, True),
    ("polygon_empty", {"segmentation": []}, False),
    ("polygon_empty", {"segmentation": [[1, 2, 3, 4]]}, False),
    ("mask_broken", {"segmentation": [[1, 2, 3, 4, 5]]}, False),
    ("mask_broken", {"segmentation": [[1, 2, 3, 4, 5, float("inf")]]}, False),
    ("mask_broken", {"segmentation": {"size": [HEIGHT, WIDTH], "counts": [HEIGHT * WIDTH - 1]}}, False),
    ("mask_broken", {"segmentation": {"size": [HEIGHT, WIDTH], "counts": [-1, HEIGHT * WIDTH + 1]}}, False),
    ("mask_broken", {"segmentation": {"size": [WIDTH, HEIGHT], "counts": [HEIGHT * WIDTH]}}, False),
    ("mask_broken", {"segmentation": {"size": [HEIGHT, WIDTH], "counts": "~~~~"}}, False),
    ("mask_empty", {"segmentation": [[10, 10, 10.2, 10, 10.2, 10.2]]}, False),
    ("mask_empty", {"segmentation": [[9, 9, 50, 9, 50, 9], [WIDTH + 3, 1, WIDTH + 9, 1, WIDTH + 9, 7]]}, False),
    ("mask_empty", {"segmentation": {"size": [HEIGHT, WIDTH], "counts": [HEIGHT * WIDTH]}}, False),
]


@pytest.mark.parametrize(("kind", "changes", "evaluated"), BAD_OBJECTS)
def test_a_bad_annotation_is_counted_and_not_trained_on(read, kind, changes, evaluated):
    bad = {**annotation(2), **changes}
    found = read(content(annotation(1), bad), masks=True)
    assert {problem: len(names) for problem, names in found.problems.items()} == {kind: 1}
    image = found.images[0]
    assert len(image.objects) == len(image.boxes) == len(image.labels) == 1 + evaluated
    assert image.trainable.sum() == 1 + (kind == "box_clipped")


def test_a_box_stays_in_the_image(read):
    found = read(content(annotation(bbox=[-5, 50, 200, 20]), annotation(2, bbox=[-0.3, 0, WIDTH + 0.4, HEIGHT])))
    np.testing.assert_array_equal(found.images[0].boxes, [[0, 50, WIDTH, HEIGHT], [0, 0, WIDTH, HEIGHT]])
    # The evaluation takes what the file says, and rounding does not matter.
    assert found.images[0].objects[0]["bbox"] == [-5, 50, 200, 20]
    assert found.problems == {"box_clipped": ["1"]}


REFUSED = {
    "half a file": (json.dumps(content(annotation()))[:-20], "JSON"),
    "nested too deeply": ("[" * 100_000, "JSON"),
    "no annotations": ({"images": [], "categories": []}, "list 'annotations'"),
    "category without a name": (content(categories=[{"id": 1}]), "category"),
    "category with a word as id": (content(categories=[{"id": "a", "name": "a"}]), "id 'a'"),
    "category twice": (content(categories=[{"id": 1, "name": "a"}, {"id": 1, "name": "b"}]), "different ids"),
    "name of a category twice": (content(categories=[{"id": 4, "name": "a"}, {"id": 9, "name": "a"}]), r"\[4, 9\]"),
    "only broken images": (content(images=[{}, {"id": 7, "file_name": "a.jpg", "height": -6, "width": 9}]), "0 of 2"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_malformed_file_is_refused_in_one_sentence(read, case):
    value, message = REFUSED[case]
    with pytest.raises(ValueError, match=message) as caught:
        read(value)
    assert "\n" not in str(caught.value)


def test_missing_files_are_errors(read, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_coco(tmp_path / "nowhere.json", [])
    with pytest.raises(ValueError, match="Images without a file"):
        read(content(annotation()), files=["c.jpg"])


OUTSIDE = ["../a.jpg", "/etc/passwd", "x/../../a.jpg", "C:\\a.jpg", "\\\\host\\a.jpg", "a\0.jpg"]


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_file_outside_of_the_folder_is_missing(read, name):
    value = content(annotation())
    value["images"][0]["file_name"] = name
    assert [image.has_file for image in read(value).images] == [False, True]


# Masks of COCO: checked, decoded and encoded as pycocotools does it.


MASKS = {
    "blob": lambda y, x: (y - 20) ** 2 + (x - 40) ** 2 < 200,
    "empty": lambda y, x: np.zeros_like(y, bool),
    "full": lambda y, x: np.ones_like(y, bool),
    "first pixel": lambda y, x: (y == 0) & (x == 0),
    "last pixel": lambda y, x: (y == HEIGHT - 1) & (x == WIDTH - 1),
    "noise": lambda y, x: np.random.default_rng(0).random(y.shape) < 0.5,
    "stripes": lambda y, x: (x % 7 < 3) & (y % 5 > 1),
}


@pytest.mark.parametrize("shape", MASKS)
def test_run_lengths_are_those_of_pycocotools(shape):
    mask = MASKS[shape](*np.mgrid[:HEIGHT, :WIDTH])
    packed = reference.encode(np.asfortranarray(mask.astype(np.uint8)))["counts"].decode()
    size, ends = [HEIGHT, WIDTH], np.flatnonzero(np.diff(mask.flatten(order="F"), prepend=False)).tolist()
    runs = np.diff([0, *ends, HEIGHT * WIDTH]).tolist()
    assert encode_masks(mask[None]) == [{"size": size, "counts": packed}]
    for counts in (packed, runs):
        rle = {"size": size, "counts": counts}
        assert check_segmentation(rle, HEIGHT, WIDTH) == ((rle, None) if mask.any() else (None, "mask_empty"))
        np.testing.assert_array_equal(decode_segmentation(rle, HEIGHT, WIDTH), mask)


def test_polygons_are_decoded_as_pycocotools_does():
    polygons = [SQUARE, [40.5, 3.25, 80.75, 20, 50, 55.5], [1, 2, 3, 4]]
    checked, problem = check_segmentation(copy.deepcopy(polygons), HEIGHT, WIDTH)
    assert problem is None
    rle = reference.merge(reference.frPyObjects(polygons[:2], HEIGHT, WIDTH))
    np.testing.assert_array_equal(decode_segmentation(checked, HEIGHT, WIDTH), reference.decode(rle))
    assert encode_masks(np.zeros((0, 5, 7), bool)) == []
