"""Which images files, folders and patterns mean, and where their results go."""

import os
from pathlib import Path, PurePosixPath

import pytest

from soft_vit.data.images import BadImage
from soft_vit.predict.inputs import find_inputs, free_name, printable, read_input


@pytest.fixture
def tree(tmp_path, monkeypatch) -> Path:
    """photos/{a.jpg, b.PNG, notes.txt, .hidden.png, deep/{a.jpg, er/c.webp, up -> photos}, [x].png}, out/a.jpg."""
    names = ["a.jpg", "b.PNG", ".hidden.png", "deep/a.jpg", "deep/er/c.webp", "[x].png", "notes.txt", "../out/a.jpg"]
    for name in names:
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "photos/deep/up").symlink_to(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)
    return tmp_path


FOUND = ["[x].png", "a.jpg", "b.PNG", "deep/a.jpg", "deep/er/c.webp"]


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["photos/notes.txt"], ["notes.txt"]),
        (["photos/[x].png"], ["[x].png"]),
        (["photos"], FOUND),
        (["photos/a.jpg", "photos/a.jpg", "photos", "photos/deep"], FOUND),
        (["."], [f"photos/{name}" for name in FOUND]),
        (["photos/none.jpg"], FileNotFoundError),
        (["out/a.jpg"], ValueError),
        (["out"], ValueError),
        (["photos/a.jpg", ""], ValueError),
    ],
    ids=str,
)
def test_what_is_meant(tree, given, names):
    if not isinstance(names, list):
        with pytest.raises(names):
            find_inputs(given, Path("out"))
        return
    found = find_inputs(given, Path("out"))
    assert sorted(str(image.name) for image in found) == names
    assert all(image.path.is_file() for image in found)


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
