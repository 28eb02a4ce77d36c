"""Mistakes at a command line end in one sentence, other exceptions keep their traceback; shared options."""

import argparse
import os
import runpy
from pathlib import Path

import pytest
from torch._utils import ExceptionWrapper

from soft_vit.cli import EXTRAS, add_config_options, add_img_size_option, add_model_options, command_line
from soft_vit.weights import WeightsError
from soft_vit.weights.files import write_atomically

ROOT = Path(__file__).parents[1]


def end_of(action) -> str:
    with pytest.raises(SystemExit) as ended:
        command_line(lambda argv: action())([])
    return ended.value.code


def raising(error: Exception):
    def fail(*args, **kwargs) -> None:
        raise error

    return fail


PATHS = [(lambda: write_atomically("file/a.pth", b""), "file"), (lambda: write_atomically("folder", b""), "folder")]
PATHS += [(lambda: Path("folder").read_bytes(), "folder"), (lambda: os.rename("none", "folder/a"), "folder/a")]


@pytest.mark.parametrize(("action", "path"), PATHS)
def test_path_that_cannot_be_used(tmp_path, monkeypatch, action, path):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("folder").mkdir()
    assert end_of(action).startswith(f"error: {path} cannot be used (")


@pytest.mark.parametrize("error", [WeightsError, FileNotFoundError])
def test_sentence_of_an_error(error):
    assert end_of(raising(error("task is 'cocoo'"))) == "error: task is 'cocoo'"


def test_error_of_a_process_that_loads_data():
    try:
        raise ValueError("the sample is empty")
    except ValueError:
        handed_over = ExceptionWrapper(where="in DataLoader worker process 0")
    assert end_of(handed_over.reraise) == "error: ValueError: the sample is empty"


def test_missing_module_of_an_extra_behind_other_errors():
    absent = ImportError("Failed to import custom modules")
    absent.__cause__ = ModuleNotFoundError("No module named 'mmdet.absent'", name="mmdet.absent")
    assert "soft_vit[mmdet]" in end_of(raising(absent))


TRACEBACKS = [(ValueError, ["--traceback"]), (KeyError, []), (ModuleNotFoundError, [])]


@pytest.mark.parametrize(("error", "arguments"), TRACEBACKS)
def test_traceback(error, arguments):
    """On request, and for errors that are not mistakes of a user."""
    with pytest.raises(error):
        command_line(lambda argv: raising(error())())(arguments)


def test_every_tool_reports_mistakes_alike(capsys):
    for path in (ROOT / "tools").rglob("*.py"):
        main = runpy.run_path(str(path))["main"]
        assert hasattr(main, "__wrapped__"), path.name
        with pytest.raises(SystemExit):
            main(["--help"])
        assert "--traceback" in capsys.readouterr().out, path.name


def test_extras_bring_their_modules():
    """The requirements of the extra name the distribution, which begins as the module does."""
    for extra, modules in EXTRAS.items():
        lines = (ROOT / "requirements" / f"{extra}.txt").read_text().replace("-", "_").splitlines()
        for module in modules:
            assert any(line.startswith(module) for line in lines), module


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    add_model_options(parser, config=True)
    add_img_size_option(parser)
    add_config_options(parser)
    return parser


OPTIONS = [
    (["--img-size", "64"], {"img_size": (64, 64)}),
    (["--img-size", "64x96"], {"img_size": (64, 96)}),
    (["--cfg-options", "a=/my images/b,c", "b=red fox"], {"options": {"a": "/my images/b,c", "b": "red fox"}}),
    (
        ["--cfg-options", "a=[fox, 2]", "b=['x,y', 'red fox']", "c=1, 2", "d=true", "e=a,b", "f=(1, 2)"],
        {"options": {"a": ["fox", 2], "b": ["x,y", "red fox"], "c": [1, 2], "d": True, "e": ["a", "b"], "f": (1, 2)}},
    ),
    (["--cfg-options", "a=1", "--cfg-options", "b=[(1, 2), None]"], {"options": {"a": 1, "b": [(1, 2), None]}}),
]


@pytest.mark.parametrize(("arguments", "expected"), OPTIONS)
def test_options(parser, arguments, expected):
    assert vars(parser.parse_args(arguments)).items() >= expected.items()


WRONG = [
    (["--cfg-options", "b=1", "novalue"], "novalue"),
    (["--cfg-options", "a=[1,2"], "a=[1,2"),
    (["--cfg-options", "a=[dict(b=1,c=2)]"], "a=[dict(b=1,c=2)]"),
    (["--checkpoint", "a.pth", "--no-pretrained"], "--no-pretrained"),
    *(([f"--img-size={text}"], text) for text in ("224x0", "-8", "abc", "224x", "2x2x2", "8.5")),
]


@pytest.mark.parametrize(("arguments", "named"), WRONG)
def test_wrong_options(parser, arguments, named, capsys):
    with pytest.raises(SystemExit) as end:
        parser.parse_args(arguments)
    assert end.value.code == 2
    assert named in capsys.readouterr().err
