"""A run of tools/train.py on a GPU that is killed and resumed ends as if nothing had happened, bit for bit."""

import os

import pytest

pytest.importorskip("mmengine")

from distributed.preparations import Strike
from distributed.processes import final_state, output, train
from engine.runs import differences


@pytest.mark.gpu
def test_killed_and_resumed(tmp_path):
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    run = dict(
        options=["randomness.deterministic=True"],
        environment={"CUDA_VISIBLE_DEVICES": gpu, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
    )
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    assert train(straight, **run) == 0, output(straight)
    assert train(killed, preparation=Strike(7).install, **run) != 0
    assert train(killed, "--resume", **run) == 0, output(killed)
    assert differences(final_state(killed), final_state(straight)) == []
