"""Measurements and pictures: cost, memory, speed and attention matrices."""
