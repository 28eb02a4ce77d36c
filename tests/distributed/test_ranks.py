"""Parts of a run in several processes over gloo, forked from the test."""

import pytest
import torch
from engine.runs import DEMO

from soft_vit.engine import resolve


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU, MMEngine wraps the model")
@pytest.mark.parametrize("own", [{}, {"model_wrapper_cfg.broadcast_buffers": True}])
def test_options_of_ddp_on_cpus_are_mmengines(own, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    wrapper = resolve(DEMO, {"find_unused_parameters": True, **own}, launcher="pytorch").model_wrapper_cfg
    expected = {"broadcast_buffers": bool(own), "find_unused_parameters": True, "device_ids": None}
    assert wrapper == {"type": "MMDistributedDataParallel", **expected}
