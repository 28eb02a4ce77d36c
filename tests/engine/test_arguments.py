"""Options of the command lines, as they are read."""

import argparse

import pytest

from soft_vit.engine.arguments import add_config_options


@pytest.fixture
def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    add_config_options(parser)
    return parser


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], None),
        (["a.b=1", "c=x=y"], {"a.b": 1, "c": "x=y"}),
        (["a=1", "--cfg-options", "b=[(1, 2), None]"], {"a": 1, "b": [(1, 2), None]}),
    ],
)
def test_values(parser, arguments, expected):
    assert parser.parse_args(["--cfg-options", *arguments] if arguments else []).cfg_options == expected


@pytest.mark.parametrize("pair", ["no_value", "a=[1,2", "a=1,)", "a=[dict(b=1,c=2)]"])
def test_what_is_no_pair_is_a_sentence(parser, pair, capsys):
    with pytest.raises(SystemExit) as end:
        parser.parse_args(["--cfg-options", "good=1", pair])
    assert end.value.code == 2
    assert f"argument --cfg-options: good=1 {pair} is not all KEY=VALUE pairs" in capsys.readouterr().err
