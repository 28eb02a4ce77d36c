"""tools/benchmark_step.py: what reaches the measurement, and one sentence for a mistake."""

import pytest

from soft_vit.engine import step_overhead
from soft_vit.engine.step_overhead import StepOverhead


def test_arguments_reach_the_measurement(tool, monkeypatch, capsys):
    given = {}

    def measure(config, **options) -> StepOverhead:
        given.update(options, config=str(config))
        return StepOverhead()

    monkeypatch.setattr(step_overhead, "measure_step_overhead", measure)
    monkeypatch.setattr(step_overhead, "overhead_table", lambda result: "the table")
    tool("benchmark_step")(["--batch-size", "4", "--rounds", "7", "--cfg-options", "a.b=1"])
    assert given.pop("config").endswith("configs/soft_tiny.py")
    assert given == {"batch_size": 4, "rounds": 7, "options": {"a.b": 1}}
    assert capsys.readouterr().out.endswith("; batch 4, 7 rounds.\n\nthe table\n")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere.py"], "There is no config nowhere.py"),
        (["--rounds", "0"], "rounds is 0"),
        (["--batch-size", "0"], "batch_size is 0"),
    ],
)
def test_mistake_is_one_sentence(tool, arguments, sentence):
    with pytest.raises(SystemExit) as ended:
        tool("benchmark_step")(arguments)
    assert ended.value.code.startswith("error: ")
    assert sentence in ended.value.code
    assert "\n" not in ended.value.code
