"""Models of MMEngine runs, and the weights they start from."""
