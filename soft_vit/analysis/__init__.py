"""Measurements of models, of their attention and of runs, and the pictures of them."""
