"""The recipes of the zoo: learning rate, average and names follow from the published rules, and runs resume exactly."""

import pytest
import timm
from engine.runs import CONFIGS, assert_same_state, on_images, resolved, scalars
from models.zoo.families import FAMILIES

from soft_vit.engine import train
from soft_vit.models import FAMILY_MODELS

# Learning rates that do not follow the rule, at a batch of 512; the rest of their schedules is given in numbers too.
OWN_RATES = {
    **{f"care_s{i}": 2.5e-3 * 512 / 1536 for i in range(3)},
    **{
        "vig_tiny": 1e-3,
        "vig_small": 5e-4,
        "vig_base": 1e-3,
        "vig_h_tiny": 8e-4,
        "vig_h_small": 5e-4,
        "vig_h_base": 5e-4,
    },
}
RECIPES = sorted((CONFIGS / "zoo").glob("*.py"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe(path):
    config = resolved(path)
    assert config.model.model_name == path.stem in FAMILY_MODELS
    batch = 8 * config.train_dataloader.batch_size
    assert config.auto_scale_lr.base_batch_size == batch
    # Models at 384 go on from those at 224.
    low = path.stem in ("vssd_small", "vssd_base")
    rate = OWN_RATES.get(path.stem, 3e-4 if low else 5e-4)
    lr = 2e-5 if path.stem.endswith("_384") else rate * batch / 512
    assert config.optim_wrapper.optimizer.lr == pytest.approx(lr)
    of_ravlt, of_pvt = path.stem.startswith(("ravlt", "mavit")), "_pvt_" in path.stem
    warm_up, cosine = config.param_scheduler
    short = of_ravlt or of_pvt or path.stem.endswith("_384")
    own = path.stem in OWN_RATES
    first = 1e-6 / lr if own else 2e-3 if of_pvt else 5 / 3 * 1e-3 if low else 1e-3
    assert (warm_up.end, warm_up.start_factor) == (5 if short else 20, pytest.approx(first))
    lowest = cosine.eta_min if of_ravlt or own else cosine.eta_min_ratio * lr
    share = 0.02 if of_pvt else 0.01
    assert lowest == pytest.approx(1e-5 if own else 1e-5 * batch / 1024 if of_ravlt else share * lr)
    decay = 0.99996 ** (batch / 512) if of_ravlt else 0.9999 if own else 0.9996 ** (batch / 4096)
    sizes = {config.model.img_size, *(step.img_size for step in config.test_dataloader.dataset.pipeline[1:-1])}
    assert sizes == {timm.get_pretrained_cfg(path.stem).input_size[-1]}
    for hook in config.get("custom_hooks", []):
        if hook.type == "EMAEvalHook":
            assert hook.momentum == pytest.approx(1 - decay, rel=1e-3)


def test_a_demo_for_every_family():
    shown = {resolved(path).model.model_name for path in (CONFIGS / "demo" / "zoo").glob("*.py")}
    demos, families = ({timm.model_entrypoint(name).__module__ for name in names} for names in (shown, FAMILY_MODELS))
    assert demos == families


# With and without MESA, repeated augmentation, and BatchNorm.
@pytest.mark.parametrize(
    "family", ["mila", *(pytest.param(family, marks=pytest.mark.slow) for family in ("h_vit3", "inline_pvt", "ravlt"))]
)
def test_a_recipe_resumes_exactly(family, tree, tmp_path):
    """Two epochs of two steps, of which the last three have the average's term; stopped within the second epoch."""
    row = FAMILIES[family]
    recipe = CONFIGS / "zoo" / f"{row.tiny}.py"
    options = on_images(tree, batch=8, size=32, epochs=2) | {
        "num_classes": 3,
        **{f"model.{name}": value for name, value in (row.small | {"model_name": row.tiny}).items()},
        "default_hooks.checkpoint.by_epoch": False,
        "default_hooks.watch": None,
    }
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    straight = train(recipe, work_dir=whole, options=options, validate=False)
    steps = [entry for entry in scalars(whole) if "loss" in entry]
    hooks = {hook["type"] for hook in resolved(recipe).get("custom_hooks", [])}
    assert ["loss_mesa" in entry for entry in steps] == [False] + ["MesaHook" in hooks] * 3
    resumed = train(recipe, work_dir=parts, options=options, resume=str(whole / "iter_3.pth"), validate=False)
    kept = ["state_dict", *["ema_state_dict"] * ("EMAEvalHook" in hooks)]
    assert_same_state(straight.checkpoint, resumed.checkpoint, *kept)
