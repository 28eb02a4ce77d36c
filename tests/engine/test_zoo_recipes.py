"""The recipes of the zoo: learning rate, average and names follow from the published rules."""

from pathlib import Path

import pytest
import timm

from soft_vit.engine.config import check_keys, load_config
from soft_vit.engine.config_values import fill_values
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
    # Models at 384 go on from those at 224.
    lr = 2e-5 if path.stem.endswith("_384") else 5e-4 * batch / 512
    assert config.optim_wrapper.optimizer.lr == pytest.approx(lr)
    of_ravlt, of_pvt = path.stem.startswith(("ravlt", "mavit")), "_pvt_" in path.stem
    warm_up, cosine = config.param_scheduler
    short = of_ravlt or of_pvt or path.stem.endswith("_384")
    assert (warm_up.end, warm_up.start_factor) == (5 if short else 20, 2e-3 if of_pvt else 1e-3)
    lowest = cosine.eta_min if of_ravlt else cosine.eta_min_ratio * lr
    assert lowest == pytest.approx(1e-5 * batch / 1024 if of_ravlt else (0.02 if of_pvt else 0.01) * lr)
    decay = 0.99996 ** (batch / 512) if of_ravlt else 0.9996 ** (batch / 4096)
    fill_values(config, config.to_dict())
    sizes = {config.model.img_size, *(step.img_size for step in config.test_dataloader.dataset.pipeline[1:-1])}
    assert sizes == {timm.get_pretrained_cfg(path.stem).input_size[-1]}
    for hook in config.get("custom_hooks", []):
        if hook.type == "EMAEvalHook":
            assert hook.momentum == pytest.approx(1 - decay, rel=1e-3)
    timm.create_model(path.stem, drop_path_rate=config.model.drop_path_rate, device="meta")


def test_every_recorded_file_of_the_zoo_names_its_recipe():
    recorded = {entry.config for entry in ENTRIES.values() if entry.model in ZOO}
    assert recorded <= {str(path.relative_to(ROOT)) for path in CONFIGS}
