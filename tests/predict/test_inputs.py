"""Which images files, folders and patterns mean, and where their results go."""

import os
from pathlib import Path, PurePosixPath

import pytest
from PIL import Image

from soft_vit.data.images import BadImage
from soft_vit.predict.inputs import find_inputs, free_name, printable, read_input


@pytest.fixture
def tree(tmp_path, monkeypatch) -> Path:
    """photos/{a.jpg, b.PNG, notes.txt, .hidden.png, deep/a.jpg, deep/er/c.webp, [x].png}, other/a.jpg, out/a.jpg."""
    for name in (
        "photos/a.jpg",
        "photos/b.PNG",
        "photos/.hidden.png",
        "photos/deep/a.jpg",
        "photos/deep/er/c.webp",
        "photos/[x].png",
        "other/a.jpg",
        "out/a.jpg",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (3, 2)).save(path)
    (tmp_path / "photos/notes.txt").write_text("no image")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["photos/a.jpg"], ["a.jpg"]),
        (["photos/notes.txt"], ["notes.txt"]),
        (["photos/[x].png"], ["[x].png"]),
        (["photos"], ["[x].png", "a.jpg", "b.PNG", "deep/a.jpg", "deep/er/c.webp"]),
        (["photos/*.jpg"], ["a.jpg"]),
        (["photos/*"], ["[x].png", "a.jpg", "b.PNG", "deep/a.jpg", "deep/er/c.webp"]),
        (["photos/**/*.jpg"], ["a.jpg", "deep/a.jpg"]),
        (["photos/**"], ["[x].png", "a.jpg", "b.PNG", "deep/a.jpg", "deep/er/c.webp"]),
        (["*/a.jpg"], ["other/a.jpg", "photos/a.jpg"]),
        (["photos/deep/../*.jpg"], ["a.jpg"]),
        (["photos/*/../a.jpg"], ["deep/a.jpg"]),
        (["photos/a.jpg", "photos/a.jpg", "photos", "photos/deep"], 5),
        (["."], 6),
        (["none*.jpg", "photos/a.jpg"], ["a.jpg"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_what_is_meant(tree, given, names):
    found = find_inputs(given, Path("out"))
    if isinstance(names, int):
        assert len(found) == names
    else:
        assert sorted(str(image.name) for image in found) == names
    assert all(image.path.is_file() for image in found)


def test_link_to_a_folder_above_gives_each_image_once(tree):
    (tree / "photos/deep/up").symlink_to(tree / "photos")
    assert len(find_inputs(["photos"], Path("out"))) == 5


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (["photos/none.jpg"], FileNotFoundError, "photos/none"),
        (["photos/*.gif"], ValueError, r"photos/\*.gif"),
        (["out/a.jpg"], ValueError, "outside of out"),
        (["out"], ValueError, "outside of out"),
        (["photos/a.jpg", ""], ValueError, "empty"),
    ],
)
def test_mistakes(tree, given, error, message):
    with pytest.raises(error, match=message):
        find_inputs(given, Path("out"))


def test_unreadable_file(tmp_path):
    path = tmp_path / "bad.jpg"
    for content in (b"", b"no image", b"\xff\xd8\xff\xe0 cut off"):
        path.write_bytes(content)
        with pytest.raises(BadImage):
            read_input(path)
    os.mkfifo(tmp_path / "pipe.jpg")
    with pytest.raises(BadImage, match="not a regular file"):
        read_input(tmp_path / "pipe.jpg")


def test_names_are_given_once():
    taken = {"predictions.json"}
    given = ["a.jpg", "a.jpg", "A.JPG", "deep/a.jpg", "predictions.json", "a_2.jpg"]
    names = [free_name(PurePosixPath(name), taken) for name in given]
    assert names == ["a.jpg", "a_2.jpg", "A_3.JPG", "deep/a.jpg", "predictions_2.json", "a_2_2.jpg"]


def test_name_that_is_not_utf8_becomes_text():
    assert free_name(PurePosixPath(os.fsdecode(b"d\xfe/\xff.png")), set()) == "d�/�.png"
    assert printable(Path(os.fsdecode(b"a\xff.jpg"))) == "a�.jpg"
