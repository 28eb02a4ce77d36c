"""tools/get_memory.py: the table, and one sentence for a mistake."""

import pytest


def test_table(tool, capsys):
    tool("get_memory")(["soft_pico", "--shape", "32", "64", "--batch-size", "2", "--device", "cpu"])
    head, what, _, columns, _, row = capsys.readouterr().out.splitlines()
    assert head.endswith("batch 2, 32 x 64, float32.")
    assert "bytes of live tensors, counted" in what
    assert columns.startswith("| model | plain |")
    assert row.startswith("| soft_pico | ")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["resnet18"], "resnet18 is not a pyramid of this package"),
        (["soft_pico", "--shape", "64", "64", "3"], "The size 64 64 3 is of no image"),
        (["soft_pico", "--shape", "16"], "16 x 16 pixels is too small"),
        (["soft_pico", "--batch-size", "0"], "A batch of 0 images"),
        (["soft_pico", "--device", "cud"], "There is no device 'cud'"),
    ],
)
def test_mistake_is_one_sentence(tool, arguments, sentence, capsys):
    with pytest.raises(SystemExit) as ended:
        tool("get_memory")(["--device", "cpu", *arguments])
    assert ended.value.code == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert sentence in error
    assert error.count("\n") == 1
