"""Decoding and augmenting, timed: what cannot be is said before."""

import pytest

from benchmarks.data import measure_data_rate, write_photographs
from soft_vit.engine.config import load_config


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 1}, "rounds is 1"),
        ({"batch_size": 3}, "Batches of 3 cannot be timed with 5 images"),
        ({"batch_size": 0}, "Batches of 0 cannot be timed"),
        ({"workers": (2, -1)}, "workers is -1; give 0"),
    ],
)
def test_too_little_to_time_is_one_sentence(tmp_path, options, message):
    write_photographs(tmp_path, 5)
    config = load_config("configs/soft_tiny.py")
    config.data_root = str(tmp_path)
    with pytest.raises(ValueError, match=message):
        measure_data_rate(config, progress=False, **{"workers": (0,), **options})
