"""Hooks of all runs: weights, checkpoints, logs, checks. The hook of one feature lies beside it."""
