"""The measurement of a step's cost measures what it says. Nothing here depends on how long something takes."""

import re
from pathlib import Path

import pytest

from soft_vit.engine.step_overhead import StepOverhead, measure_step_overhead, overhead_table

SOFT_TINY = Path(__file__).parents[2] / "configs" / "soft_tiny.py"
KINDS = ["forward, backward, optimizer", "step without EMA", "step"]


def test_every_kind_of_step_of_the_recipe_is_taken():
    options = {"model.model_name": "soft_pico", "model.img_size": 32}
    result = measure_step_overhead(SOFT_TINY, batch_size=2, img_size=32, rounds=3, options=options)
    assert list(result.seconds) == KINDS
    assert all(len(seconds) == 3 for seconds in result.seconds.values())
    parts = {"EMAEvalHook", "RuntimeInfoHook", "ParamSchedulerHook", "clipping and guard", "preprocessing of the batch"}
    assert parts <= result.parts.keys()
    assert all(value > 0 for value in result.parts.values())


def test_table():
    result = StepOverhead(
        seconds=dict(zip(KINDS, ([1.0, 2.0, 4.0], [1.1, 2.2, 4.4], [1.2, 2.4, 4.8]), strict=True)),
        parts={"EMAEvalHook": 0.6, "one": 1e-6, "two": 2e-6},
    )
    table = overhead_table(result)
    assert "| step without EMA | 2200.0 | 1100.0 - 4400.0 | 1.100 | 1.100 - 1.100 |" in table
    # 0.2 s of a mean step of 2.8 s.
    assert "| EMAEvalHook | 200.00 | 7.69 |" in table
    assert "| other hooks | 0.00 | 0.00 |" in table
    assert "one" not in re.findall(r"^\| (\w+) \|", table, flags=re.M)


@pytest.mark.parametrize(
    ("options", "message"), [({"rounds": 2}, "rounds is 2"), ({"batch_size": 0}, "batch_size is 0")]
)
def test_too_little_to_measure(options, message):
    with pytest.raises(ValueError, match=message):
        measure_step_overhead(SOFT_TINY, **options)
