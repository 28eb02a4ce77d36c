"""tools/benchmark_data.py: its table, and one sentence for a mistake."""

import pytest

from soft_vit.weights.folders import RESOURCES

SOFT_TINY = str(RESOURCES / "configs" / "soft_tiny.py")


def test_table(tool, capsys):
    few = ["--generate", "4", "--workers", "0", "--batch-size", "2", "--rounds", "2"]
    tool("benchmark_data")([*few, "--config", SOFT_TINY])
    head, _, _, _, *rows = capsys.readouterr().out.splitlines()
    assert head.endswith(f"{SOFT_TINY}, 4 generated JPEGs of 500 x 375")
    assert [row.split(" | ")[:2] for row in rows] == [["| 0", "soft_vit"], ["| 0", "timm"]]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "give either a data_root or --generate N"),
        (["images", "--generate", "4"], "give either a data_root or --generate N"),
        (["--generate", "0"], "--generate is 0; give a number of images"),
        (["nowhere"], "There is no folder nowhere"),
        (["--generate", "4", "--config", "nowhere.py"], "There is no config nowhere.py"),
        (["--generate", "4", "--config", str(RESOURCES / "configs/demo/soft_pico_shapes.py")], "is TimmAugment"),
        (["--generate", "4", "--rounds", "1"], "rounds is 1"),
        (["--generate", "4", "--batch-size", "0"], "Batches of 0 cannot be timed"),
        (["--generate", "4", "--workers", "-1"], "workers is -1"),
    ],
)
def test_mistake_is_one_sentence(tool, arguments, sentence, capsys):
    with pytest.raises(SystemExit) as ended:
        tool("benchmark_data")(["--config", SOFT_TINY, "--batch-size", "2", *arguments])
    # The parser's own mistakes are printed, the others are the code that the process ends with.
    error = capsys.readouterr().err if ended.value.code == 2 else ended.value.code
    assert "error: " in error
    assert sentence in error
