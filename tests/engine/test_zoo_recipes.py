"""The recipes of the zoo: learning rate, average and names follow from the published rules."""

from pathlib import Path

import pytest
import timm

from soft_vit.engine.config import check_keys, load_config
from soft_vit.models.zoo import ZOO
from soft_vit.weights import ENTRIES

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs" / "zoo").glob("*.py"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_recipe(path):
    config = load_config(path)
    check_keys(config)
    assert config.model.model_name == path.stem in ZOO
    batch = 8 * config.train_dataloader.batch_size
    assert config.auto_scale_lr.base_batch_size == batch
    assert config.optim_wrapper.optimizer.lr == pytest.approx(5e-4 * batch / 512)
    of_ravlt = path.stem.startswith(("ravlt", "mavit"))
    warm_up, cosine = config.param_scheduler
    lowest = cosine.eta_min if of_ravlt else cosine.eta_min_ratio * config.optim_wrapper.optimizer.lr
    assert (warm_up.end, warm_up.start_factor) == (5 if of_ravlt else 20, 1e-3)
    assert lowest == pytest.approx(1e-5 * batch / 1024)
    decay = 0.99996 ** (batch / 512) if of_ravlt else 0.9996 ** (batch / 4096)
    for hook in config.get("custom_hooks", []):
        if hook.type == "EMAEvalHook":
            assert hook.momentum == pytest.approx(1 - decay, rel=1e-3)
    timm.create_model(path.stem, drop_path_rate=config.model.drop_path_rate, device="meta")


def test_every_recorded_file_of_the_zoo_names_its_recipe():
    recorded = {entry.config for entry in ENTRIES.values() if entry.model in ZOO}
    assert recorded == {str(path.relative_to(ROOT)) for path in CONFIGS}
