"""The copy that a device's bandwidth is measured by."""

import pytest

from soft_vit.analysis import bandwidth


def test_bytes_are_read_and_written(monkeypatch):
    monkeypatch.setattr(bandwidth, "COPIED_BYTES", 4096)
    copies = []

    def seconds(steps, rounds, device):
        for copy in steps.values():
            copies.append(copy())
        return {name: [4.0, 2.0, 1.0][:rounds] for name in steps}

    monkeypatch.setattr(bandwidth, "time_in_turn", seconds)
    assert bandwidth.copy_bandwidth("cpu", rounds=3) == pytest.approx(2 * 4096 / 2.0 / 1e9)
    assert copies[0].nbytes == 4096
    assert copies[0].eq(1).all()
