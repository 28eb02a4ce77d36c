"""Studies of attention: what each attention learns, claims of the field, where softmax is."""
