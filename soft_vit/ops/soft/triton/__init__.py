"""The softmax-free operator as fused GPU kernels. Importing this package imports PyTorch only; see `op.py`."""
