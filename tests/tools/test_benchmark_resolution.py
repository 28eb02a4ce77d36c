"""tools/benchmark_resolution.py: its tables, and one sentence for a mistake."""

import pytest

TINY = ["--sizes", "64", "96x64", "--rounds", "0", "--device", "cpu"]


def test_tables(tool, tmp_path, capsys):
    tool("benchmark_resolution")(["soft_pico", *TINY, "--out", str(tmp_path / "folder" / "table.md")])
    printed = capsys.readouterr().out
    assert "one image, float32, forward and backward of soft_pico" in printed
    assert printed.count("| 96 x 64 |") == 2
    assert (tmp_path / "folder" / "table.md").read_text() in printed


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["soft_pica"], "soft_pica is not a pyramid of this package"),
        (["resnet18"], "resnet18 is not a pyramid of this package"),
        (["linformer_pyramid_pico"], "'max_bottleneck' is no option of this model"),
        (["soft_pico", "--sizes", "16"], "16 x 16 pixels is too small"),
        (["soft_pico", "--rounds", "1"], "rounds is 1"),
        (["soft_pico", "--device", "cud"], "There is no device 'cud'"),
        (["soft_pico", "--threads", "0"], "The number of threads is 0"),
        (["soft_pico", "--out", f"{__file__}/table.md"], "table.md cannot be written"),
        (["soft_pico", "--sizes", "small"], "--sizes has small; give sides such as 224, or 800x1333."),
    ],
)
def test_mistake_is_one_sentence(tool, arguments, sentence, capsys):
    with pytest.raises(SystemExit) as ended:
        tool("benchmark_resolution")([*TINY, *arguments])
    assert ended.value.code in (1, 2)
    error = capsys.readouterr().err
    assert "error: " in error
    assert sentence in error
