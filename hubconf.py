"""Models for torch.hub: `torch.hub.load("PATH/OF/CLONE", "soft_tiny", source="local", pretrained=True)`."""

import functools

import timm

import soft_vit  # noqa: F401  registers its models

dependencies = ["torch", "timm"]

# torch.hub lists all that can be called.
names = [name for name in timm.list_models() if timm.model_entrypoint(name).__module__.startswith("soft_vit.")]
globals().update({name: functools.partial(timm.create_model, name) for name in names})
