import logging
from types import SimpleNamespace

import timm
from torch import nn

from soft_vit.engine.hooks.attention_report import AttentionReportHook


def test_run_reports_the_model_as_it_was_trained(tmp_path):
    """The validation without attentions leaves the run's figures alone."""
    scalars = {"val/accuracy/top1": [99.0]}

    def run() -> dict[str, float]:
        scalars["val/accuracy/top1"].append(17.0)
        return {"accuracy/top1": 17.0}

    classifier = nn.Module()
    classifier.model = timm.create_model("soft_pico", num_classes=2, img_size=32)
    runner = SimpleNamespace(
        model=classifier,
        val_loop=SimpleNamespace(run=run),
        val_dataloader=SimpleNamespace(dataset=None),
        message_hub=SimpleNamespace(log_scalars=scalars),
        logger=logging.getLogger("test"),
        work_dir=str(tmp_path),
    )
    AttentionReportHook(num_images=0).after_train(runner)
    assert scalars == {"val/accuracy/top1": [99.0]}
