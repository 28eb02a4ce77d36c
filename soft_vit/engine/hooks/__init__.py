"""Hooks that the configs name: weights, checkpoints, logs, checks."""
