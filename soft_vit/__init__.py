"""Softmax-free vision transformers."""
