from types import SimpleNamespace
from unittest.mock import Mock

import timm
from torch import nn

from soft_vit.engine.hooks.attention_report import AttentionReportHook


def test_run_reports_the_model_as_it_was_trained(tmp_path):
    """The validation without attentions leaves the run's figures alone."""
    scalars = {"val/accuracy/top1": [99.0]}
    runner = Mock(work_dir=str(tmp_path), message_hub=SimpleNamespace(log_scalars=scalars))
    runner.model = nn.Module()
    runner.model.model = timm.create_model("soft_pico", num_classes=2, img_size=32)
    runner.val_loop.run = lambda: scalars["val/accuracy/top1"].append(17.0) or {"accuracy/top1": 17.0}
    AttentionReportHook(num_images=0).after_train(runner)
    assert scalars == {"val/accuracy/top1": [99.0]}
