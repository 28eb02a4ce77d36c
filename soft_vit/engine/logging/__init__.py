"""Metrics, logs and what watches a run."""
