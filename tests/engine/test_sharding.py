"""A sharded run is the same run: its steps, its average, its checkpoints, with DDP as the reference.

Run as a program, by torchrun, this file makes the runs that the test compares.
"""

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch

from soft_vit.engine import TimmProgressClassifier, train
from soft_vit.engine.checkpoints.safe_checkpoint import load_checkpoint_file

DEMO = Path(__file__).parents[2] / "configs" / "demo" / "soft_pico_shapes.py"
SHARDED = {"model_wrapper_cfg": dict(type="ShardedDataParallel")}
SMALL = dict(depths=(1, 1, 2, 1), img_size=32)
OPTIONS = {
    "model": SMALL,
    # Adam would make steps of full size from the rounding errors that are the gradients of some biases.
    "optim_wrapper": dict(type="SafeOptimWrapper", optimizer=dict(type="SGD", lr=0.01, momentum=0.9, _delete_=True)),
    "custom_hooks": [dict(type="EMAEvalHook", momentum=0.1)],
    "train_dataloader": dict(batch_size=4, dataset=dict(length=24, size=32)),
    "val_dataloader.dataset": dict(length=20, size=32),
    "default_hooks.logger.interval": 1,
}


def run(work_dir: str, epochs: int, resume: str | None = None, **options: object) -> None:
    # MMEngine changes what it is given.
    options = copy.deepcopy({**OPTIONS, "train_cfg.max_epochs": epochs, **options})
    train(DEMO, work_dir=work_dir, resume=resume, options=options, launcher="pytorch")


def check_share() -> None:
    """Every process holds its half of each parameter alone, of an average as of the model."""
    from soft_vit.engine.sharding import ShardedDataParallel

    arguments = dict(model_name="soft_pico", num_classes=10, data_preprocessor=dict(mean=[9.0], std=[5.0]), **SMALL)
    model = ShardedDataParallel(TimmProgressClassifier(**arguments)).module
    average = copy.deepcopy(model)
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, average.get_buffer(name)), name
    for module in (model, average):
        held = sum(parameter.to_local().numel() for parameter in module.parameters())
        # A first dimension of 1 is not cut in two; position embeddings have one.
        assert held < 0.6 * sum(parameter.numel() for parameter in module.parameters())


def main() -> None:
    run("ddp", 1)
    check_share()
    run("sharded", 1, **SHARDED)
    run("ddp goes on", 2, "ddp/epoch_1.pth")
    run("sharded goes on", 2, "sharded/epoch_1.pth", **SHARDED)
    run("ddp goes on from sharded", 2, "sharded/epoch_1.pth")
    run("sharded starts", 1, load_from="sharded/epoch_1.pth", **SHARDED)


def difference(a: object, b: object) -> float:
    """The largest relative one between two checkpoints, which have to hold the same names, kinds and shapes."""
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert list(a) == list(b)
        return max((difference(a[name], b[name]) for name in a), default=0.0)
    if isinstance(a, torch.Tensor) and a.is_floating_point():
        assert a.shape == b.shape
        # What is next to nothing, such as the momentum of a bias before BatchNorm, is compared as such.
        return ((a - b).abs().max() / b.abs().max().clamp(min=1e-2)).item()
    return 0.0


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="two processes on gloo need a machine without a GPU")
def test_sharded_run_is_the_same_run(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", __file__]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stderr[-3000:]

    saved = {path.parent.name: load_checkpoint_file(path) for path in tmp_path.glob("*/epoch_*.pth")}
    assert len(saved) == 6
    for name, reference in [
        ("sharded", "ddp"),
        ("sharded goes on", "ddp goes on"),
        ("ddp goes on from sharded", "ddp goes on"),
    ]:
        for part in ("state_dict", "ema_state_dict", "optimizer"):
            # Gradients are summed in another order: units of the last place, which six steps make larger.
            assert difference(saved[name][part], saved[reference][part]) < 1e-4, (name, part)
    moved = difference(saved["ddp goes on"]["state_dict"], saved["ddp"]["state_dict"])
    assert moved > 0.1

    logs = {}
    for path in sorted(tmp_path.glob("*/*/vis_data/scalars.json")):
        entries = [json.loads(line) for line in path.read_text().splitlines()]
        logs[path.parents[2].name] = [entry[key] for entry in entries for key in ("loss", "grad_norm") if key in entry]
    assert logs["sharded"] == pytest.approx(logs["ddp"], rel=1e-4)
    assert logs["sharded goes on"] == pytest.approx(logs["ddp goes on"], rel=1e-4)

    model = timm.create_model("soft_pico", num_classes=10, **SMALL)
    model.load_state_dict(saved["sharded"]["state_dict"])


@pytest.mark.parametrize(
    ("name", "options", "count"),
    [("soft_pico", SMALL, 5), ("test_vit", {}, 6), ("test_resnet", {}, 0)],
)
def test_units(name, options, count):
    from soft_vit.engine.sharding import blocks_of

    assert len(blocks_of(timm.create_model(name, **options))) == count


if __name__ == "__main__":
    main()
