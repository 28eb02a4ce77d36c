"""Lists in text files: names of classes, labels of images."""

from pathlib import Path

__all__ = ["read_lines"]


def read_lines(path: Path) -> list[str]:
    """The lines of a text in UTF-8 that hold anything, without spaces around; ValueError for one in another encoding.

    A byte order mark, which some editors put first, is left out.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text in UTF-8 ({error}); save it as one.") from error
    return [line.strip() for line in lines if line.strip()]
