"""The softmax-free attention operator: definition, blocked form, inverses, and fused kernels in triton/."""
