"""The rows of the comparison; one failure does not lose the others."""

import pytest

from benchmarks import attentions as module
from benchmarks.attentions import attentions_table, compare_attentions


def test_rows_are_complete_and_a_failing_one_keeps_the_others(monkeypatch):
    for function, name in (("count", "softmax_pyramid_pico"), ("try_steps", "linear_pyramid_pico")):
        work = getattr(module, function)

        def fail(model, *args, work=work, name=name):
            if model == name:
                raise MemoryError("no room\nat all")
            return work(model, *args)

        monkeypatch.setattr(module, function, fail)
    names = ["softmax", "linear", "soft"]
    rows = compare_attentions(names, size="pico", img_size=(64, 96), batch_size=1, rounds=3)
    assert [row["attention"] for row in rows] == names
    *failed, soft = rows
    assert [row["error"] for row in failed] == ["MemoryError: no room"] * 2
    assert not soft["error"]
    assert min(soft[name] for name in module.FIGURES) > 0
    assert "| softmax | MemoryError: no room |" in attentions_table(rows)


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ({"rounds": 2}, "2"),
        ({"batch_size": 0}, "0"),
        ({"size": "x"}, "'x'"),
        ({"size": "pico", "vit": True}, "soft_vit_pico"),
    ],
)
def test_mistakes_are_seen_before_anything_is_counted(monkeypatch, change, value):
    counted = []
    monkeypatch.setattr(module, "count", lambda *args: counted.append(args))
    with pytest.raises(ValueError, match=value):
        compare_attentions(["soft"], **{"size": "pico", "rounds": 3, **change})
    assert not counted


def test_published_figures_have_a_column_of_their_own():
    row = dict(zip(module.FIGURES, (1, 2, 3, 4, 5), strict=True)) | {
        "attention": "soft",
        "published": "79.3",
        "error": "",
    }
    other = row | dict.fromkeys(("inference_images_per_s", "training_images_per_s")) | {"published": ""}
    header, _, first, second = attentions_table([row, other]).splitlines()
    assert "published" in header
    assert first.endswith("| 79.3 |")
    assert second.count("not measured") == 2
    assert "published" not in attentions_table([other])
