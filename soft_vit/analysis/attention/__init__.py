"""What an attention computes: its matrix, a picture of where a token looks, its spectrum."""
