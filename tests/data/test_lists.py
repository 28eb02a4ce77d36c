"""Names in text files, however they were saved."""

import pytest

from soft_vit.data.lists import read_lines


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_lines(tmp_path, encoding):
    (tmp_path / "classes.txt").write_bytes("Käfer\r\n\n  two words \n".encode(encoding))
    assert read_lines(tmp_path / "classes.txt") == ["Käfer", "two words"]


def test_another_encoding_is_said_with_the_file(tmp_path):
    (tmp_path / "classes.txt").write_bytes("Käfer".encode("latin-1"))
    with pytest.raises(ValueError, match=r"classes\.txt is no text in UTF-8 .*save it as one"):
        read_lines(tmp_path / "classes.txt")
