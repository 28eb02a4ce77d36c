"""The comparison's rows; one failure does not lose the others."""

import csv

import pytest

from benchmarks import attentions as comparison
from benchmarks.attentions import Row, compare_attentions, comparison_table
from soft_vit.text_tables import rows_as_csv


def test_rows_are_complete_and_a_failing_one_keeps_the_others(monkeypatch):
    for function, place, name in (("_count", 1, "softmax_pyramid_pico"), ("try_steps", 0, "linear_pyramid_pico")):
        work = getattr(comparison, function)

        def fail(*args, work=work, place=place, name=name):
            if args[place] == name:
                raise MemoryError("no room\nat all")
            work(*args)

        monkeypatch.setattr(comparison, function, fail)
    names = ["softmax", "linear", "soft"]
    rows = compare_attentions(names, size="pico", img_size=(64, 96), batch_size=1, rounds=3)
    assert [row.attention for row in rows] == names
    *failed, soft = rows
    assert [row.error for row in failed] == ["MemoryError: no room"] * 2
    assert not soft.error
    assert min(soft.params_m, soft.flops_g, soft.train_memory_mb) > 0
    assert min(soft.inference_images_per_s, soft.training_images_per_s) > 0
    table = comparison_table(rows)
    assert "| softmax | MemoryError: no room |" in table
    written = list(csv.DictReader(rows_as_csv(rows).splitlines()))
    assert [row["attention"] for row in written] == names


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rounds": 2}, "rounds must be at least 3, got 2"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"device": "gpu"}, "no device 'gpu'"),
        ({"size": "x"}, "no model"),
        ({"size": "pico", "vit": True}, "no model soft_vit_pico"),
    ],
)
def test_mistakes_are_seen_before_anything_is_counted(monkeypatch, change, message):
    counted = []
    monkeypatch.setattr(comparison, "_count", lambda *args: counted.append(args))
    with pytest.raises(ValueError, match=message):
        compare_attentions(["soft"], **{"size": "pico", "rounds": 3, **change})
    assert not counted


def test_published_figures_stand_in_their_own_column():
    table = comparison_table([Row("soft", 1, 2, 3, 4, 5, published="79.3"), Row("linear", 1, 2, 3)])
    header, _, soft, linear = table.splitlines()
    assert "published" in header
    assert soft.endswith("| 79.3 |")
    assert linear.count("not measured") == 2
