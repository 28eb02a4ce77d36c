"""tools/train_attentions.py: its files after every run, and one sentence for a mistake."""

import pytest

from soft_vit.engine.accuracy import AccuracyRow


def test_files_are_there_after_every_run(tool, demo, tmp_path, monkeypatch, capsys):
    out, given = tmp_path / "folder" / "two.v1", {}

    def compare(attentions, config, *, on_row, **options) -> list[AccuracyRow]:
        given.update(options, attentions=attentions, config=config)
        rows = [AccuracyRow(name, f"{name}_pyramid_pico") for name in attentions]
        rows[1].top1 = 50.0
        on_row(rows)
        assert "| softmax | softmax_pyramid_pico | 50.0 |" in (tmp_path / "folder" / "two.v1.md").read_text()
        assert (tmp_path / "folder" / "two.v1.csv").read_text().count("\n") == 3
        return rows

    monkeypatch.setattr("soft_vit.engine.accuracy.compare_accuracy", compare)
    arguments = ["--jobs", "2", "--work-dir", str(tmp_path), "--out", str(out), "--cfg-options", "a.b=1"]
    tool("train_attentions")([demo, "local", "softmax", *arguments])
    assert given == {
        "attentions": ["local", "softmax"],
        "config": demo,
        "size": "pico",
        "work_dir": tmp_path,
        "jobs": 2,
        "options": {"a.b": 1},
    }
    assert (tmp_path / "folder" / "two.v1.md").read_text() in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["sofd"], "attention='sofd' is not known"),
        (["soft", "--jobs", "0"], "jobs is 0"),
        (["soft", "--out", f"{__file__}/accuracy"], "accuracy.md cannot be written"),
    ],
)
def test_mistake_is_one_sentence(tool, demo, tmp_path, arguments, sentence):
    with pytest.raises(SystemExit) as ended:
        tool("train_attentions")([demo, *arguments, "--work-dir", str(tmp_path / "runs")])
    assert ended.value.code.startswith("error: ")
    assert sentence in ended.value.code
    assert "\n" not in ended.value.code
