# %% [markdown]
# # A SigLIP2 at three resolutions, softmax against linear attention
# `python docs/examples/siglip2_resolutions.py [SIDE ...]`, sides in patches of 16 pixels. Weights are random: time and
# memory do not depend on them.

# %%
import sys

import torch
import transformers

import soft_vit.hf
from benchmarks.timer import measure
from soft_vit.probe.cost import machine_description

sides = [int(side) for side in sys.argv[1:]] or [16, 32, 64]

# %% Two of twelve layers of the base model, by transformers' own class.
soft_vit.hf.register()
config = transformers.Siglip2VisionConfig(num_hidden_layers=2)
model = transformers.Siglip2VisionModel(config).eval()


# %% One image, with the name of the attention as the only difference.
def encode(implementation: str, side: int) -> None:
    model.set_attn_implementation(implementation)
    patches = torch.zeros(1, side * side, 3 * config.patch_size**2)
    with torch.inference_mode():
        model(patches, torch.ones(1, side * side), torch.tensor([[side, side]]))


# %% Both take turns, after a warm-up.
print(machine_description())
for side in sides:
    steps = {name: (lambda name=name: encode(name, side)) for name in ("sdpa", "soft_vit_linear")}  # noqa: B023  called here
    for timing in measure(steps, "inference", side * side, 5, "cpu", steps):
        middle, lower, upper = (1e3 * seconds for seconds in timing.time)
        print(f"{timing.size:5} tokens  {timing.target:16}{middle:8.1f} ms ({lower:.1f} - {upper:.1f})", end="")
        print(f"{timing.megabytes:8.1f} MB")
