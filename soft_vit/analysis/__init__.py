"""Complexity, memory and throughput of models."""
