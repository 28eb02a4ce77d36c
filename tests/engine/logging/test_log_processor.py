"""Figures of the progress line that MMEngine has not."""

from soft_vit.engine.logging.log_processor import peak_memory


def test_peak_memory_is_that_of_a_process_with_torch_in_it():
    assert 50 < peak_memory() < 1 << 20
