"""Generators of pages, tables and pictures: `python -m docs.generate` writes them all."""
