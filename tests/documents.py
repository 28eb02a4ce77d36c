"""What a Markdown page shows: commands, snippets and paths."""

import re
import runpy
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language, without their fences."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def prose(text: str) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def inline_code(text: str) -> list[str]:
    """What stands between single backticks outside of fenced blocks, each on one line."""
    return [" ".join(code.split()) for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose(text))]


def commands(text: str) -> list[str]:
    """Every command of the bash blocks, without comments, and of inline code that begins like one; in order."""
    lines = [line for block in blocks(text, "bash") for line in block.replace("\\\n", " ").splitlines()]
    inline = [code for code in inline_code(text) if re.match(r"(python|pip|tools/\w+\.sh|bash) \S", code)]
    found = [shlex.join(shlex.split(line, comments=True)) for line in (*lines, *inline)]
    # shlex quotes the operator that joins two commands.
    return list(dict.fromkeys(part.strip() for line in found for part in line.split(" '&&' ") if part.strip()))


def missing_paths(page: Path) -> list[str]:
    """Links and paths of the repository in a page that lead nowhere."""
    text = page.read_text()
    linked = [target.split("#")[0] for target in re.findall(r"\]\(([^)]+)\)", prose(text)) if "://" not in target]
    rooms = r"(?:soft_vit|benchmarks|studies|configs|tools|tests|checkpoints|requirements|docs|\.ci)/[\w./*-]*"
    named = [path.rstrip("./") for path in re.findall(rf"(?<![\w/.]){rooms}", re.sub(r"\]\([^)]+\)", "", text))]
    missing = [path for path in linked if path and not (page.parent / path).exists()]
    return sorted({*missing, *(path for path in named if not any(ROOT.glob(path)))})


def run_tool(command: str, extra: Sequence[str] = ()) -> None:
    """Run `python FILE ARGUMENTS` or `python -m MODULE ARGUMENTS` in this process; fail unless it ends well."""
    program, file, *arguments = shlex.split(command)
    assert program == "python", command
    run = runpy.run_path
    if file == "-m":
        run, file = runpy.run_module, arguments.pop(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [file, *arguments, *extra])
        code = None
        try:
            run(file, run_name="__main__")
        except SystemExit as end:
            code = end.code
        assert code in (None, 0), f"{command}: {code}"
