"""Where a file that takes long to make can go."""

import pytest

from soft_vit.weights.files import require_place


def test_a_folder_is_made_and_nothing_in_it(tmp_path):
    require_place(tmp_path / "new" / "folder" / "rows.csv")
    assert list((tmp_path / "new" / "folder").iterdir()) == []


@pytest.mark.parametrize(
    ("path", "message"),
    [("file/rows.csv", "cannot be written"), ("/proc/rows.csv", "cannot be written"), ("folder", "is a folder")],
)
def test_what_cannot_be_written(tmp_path, path, message):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match=f"{path} {message}"):
        require_place(tmp_path / path)
