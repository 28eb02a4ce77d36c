"""What holds on real pictures and for a real teacher: data and weights from packages, runs and their tables."""
