"""What attention does: its matrix, where a token looks, spectrum and health; parameters, FLOPs, curves of runs."""
