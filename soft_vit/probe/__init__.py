"""Analysis of attentions (matrix, map of a token, spectrum, health), parameters, FLOPs and cost, curves of runs."""
