# %% [markdown]
# # Training on images of many shapes and on squares, with the same budget of tokens
# `python docs/examples/naflex_rates.py [IMAGES ROUNDS]`: images per second of configs/naflex, with loading.

# %%
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader

import soft_vit.engine  # noqa: F401  registers what the config names
from benchmarks.timer import measure
from soft_vit.engine.config import resolve
from soft_vit.engine.data.naflex import NaFlexDataset, TokenBudgetSampler, collate_patches
from soft_vit.engine.resume.position import PositionSampler
from soft_vit.probe.cost import machine_description
from soft_vit.registry import MODELS

images, rounds = map(int, sys.argv[1:] or (260, 8))
config = resolve(Path(__file__).parents[2] / "configs" / "naflex" / "linear_ovals.py")
model = MODELS.build({**config.model, "data_preprocessor": config.data_preprocessor}).train()
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)


# %%
def train_an_epoch(keep_ratio: bool) -> None:
    data = NaFlexDataset({"type": "OvalsDataset", "length": images}, 8, config.seq_len, keep_ratio)
    order = PositionSampler(data, {"type": "DefaultSampler", "shuffle": True}, seed=0)
    batches = TokenBudgetSampler(order, 32, config.train_dataloader.batch_sampler.seq_lens)
    order.begin(0, 0, batches.begin(0, 0))
    for batch in DataLoader(data, batch_sampler=batches, collate_fn=collate_patches):
        inputs = model.data_preprocessor(batch, training=True)
        model(**inputs, mode="loss")["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()


# %% Both take turns, after a warm-up.
print(machine_description())
steps = {"own aspect ratio": lambda: train_an_epoch(True), "squares": lambda: train_an_epoch(False)}
for timing in measure(steps, "training", images, rounds, "cpu"):
    print("{:16} {:.0f} images/s ({:.0f} - {:.0f})".format(timing.target, *timing.rate))
