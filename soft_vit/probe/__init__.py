"""Analysis of attentions (matrix, map of a token, spectrum, health), parameters and FLOPs, curves of runs."""
