"""The rows of the comparison; one failure does not lose the others."""

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
    names = ["softmax", "linear", "none"]
    rows = compare_attentions(names, size="pico", img_size=(64, 96), batch_size=1, rounds=3)
    assert [row["attention"] for row in rows] == names
    *failed, none = rows
    assert [row["error"] for row in failed] == ["MemoryError: no room"] * 2
    assert not none["error"]
    assert min(none[name] for name in module.FIGURES) > 0
    assert "| softmax | MemoryError: no room |" in attentions_table(rows)
