"""Training and test data of MMEngine runs."""
