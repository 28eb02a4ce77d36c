"""Resume a stopped run exactly: random numbers by position, one run in a folder, and a stop at a signal."""
