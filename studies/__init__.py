"""Studies of attention, next to the package: what each attention learns, claims of the field, where softmax is."""
