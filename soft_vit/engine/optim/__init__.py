"""Optimizers, learning rates and averaged weights."""
