"""Hooks of runs."""
