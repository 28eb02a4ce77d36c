"""Checkpoints written atomically and read without executing anything."""
