"""Which images files and folders mean, and where their results go."""

import os
from pathlib import Path, PurePosixPath

import pytest
from file_server import file_server

from soft_vit.predict.inputs import find_inputs, free_name, printable

FOUND = ["[x].png", "a.jpg", "b.PNG", "deep/a.jpg", "deep/er/c.webp"]


@pytest.fixture
def tree(tmp_path, monkeypatch) -> None:
    """photos/ with those that are FOUND, text, a hidden image and a link to photos/; out/a.jpg."""
    for name in [*FOUND, ".hidden.png", "notes.txt", "../out/a.jpg"]:
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "photos/deep/up").symlink_to(tmp_path / "photos")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["photos/notes.txt"], ["notes.txt"]),
        (["photos/[x].png"], ["[x].png"]),
        (["photos/a.jpg", "photos/a.jpg", "photos", "photos/deep"], FOUND),
        (["."], [f"photos/{name}" for name in FOUND]),
    ],
)
def test_what_is_meant(tree, given, names):
    found = find_inputs(given, Path("out"))
    assert sorted(str(image.name) for image in found) == names
    assert all(image.source.is_file() for image in found)


@pytest.mark.parametrize(
    ("given", "error"),
    [("none.jpg", FileNotFoundError), ("out/a.jpg", ValueError), ("out", ValueError), ("", ValueError)],
)
def test_mistakes(tree, given, error):
    with pytest.raises(error):
        find_inputs([given], Path("out"))


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("http://localhost/a/b.jpg?size=3#x", "b.jpg"),
        ("https://localhost", "image"),
        ("https://localhost/a/..", "image"),
        ("-", "image"),
    ],
)
def test_addresses_and_standard_input(tmp_path, given, name):
    (found,) = find_inputs([given, given], tmp_path)
    assert (found.source, str(found.name)) == (given, name)


def test_downloads(monkeypatch):
    def read(address: str) -> bytes:
        (found,) = find_inputs([address], Path("out"))
        return found.read()

    with file_server(body=b"0123456789") as server:
        assert read(f"{server.url}/image") == b"0123456789"
        server.status = [404]
        for path, reason in (("/none", "404"), ("/a b", "control characters")):
            with pytest.raises(OSError, match=reason):
                read(server.url + path)
        monkeypatch.setattr("soft_vit.predict.inputs.MAX_FILE_BYTES", 9)
        with pytest.raises(ValueError, match="9 bytes"):
            read(f"{server.url}/image")
    with pytest.raises(OSError, match="refused"):
        read(f"{server.url}/image")


def test_names_are_given_once_and_are_text():
    taken = {"predictions.json"}
    given = ["a.jpg", "a.jpg", "A.JPG", "deep/a.jpg", "predictions.json", "a_2.jpg", os.fsdecode(b"d\xfe/\xff.png")]
    names = [free_name(PurePosixPath(name), taken) for name in given]
    assert names == ["a.jpg", "a_2.jpg", "A_3.JPG", "deep/a.jpg", "predictions_2.json", "a_2_2.jpg", "d�/�.png"]
    assert printable(Path(os.fsdecode(b"a\xff.jpg"))) == "a�.jpg"
