"""The benchmark's bookkeeping; no test looks at how fast anything is."""

import pytest

from soft_vit.analysis.throughput import Timing, measure_throughput, throughput_table


def test_every_model_is_timed_in_every_mode():
    names = ["soft_pico", "soft_norm_pico"]
    timings = measure_throughput(names, batch_size=2, img_size=(32, 48), rounds=3, progress=False)
    assert [(t.mode, t.model) for t in timings] == [(m, n) for m in ("inference", "training") for n in names]
    assert all(0 < t.lower <= t.median <= t.upper for t in timings)


def test_ratios_are_against_the_first_model_of_the_mode():
    rows = [Timing("a", "inference", 10, 9, 11), Timing("b", "inference", 15, 14, 16), Timing("a", "training", 4, 3, 5)]
    table = throughput_table(rows).splitlines()
    assert [line.split("|")[-2].strip() for line in table[2:]] == ["1.00", "1.50", "1.00"]


@pytest.mark.parametrize(("kwargs", "message"), [({"modes": ["flight"]}, "flight"), ({"rounds": 2}, "rounds=2")])
def test_bad_arguments(kwargs, message):
    with pytest.raises(ValueError, match=message):
        measure_throughput(["soft_pico"], progress=False, **kwargs)
