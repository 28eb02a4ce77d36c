"""Generated data: shapes and tiles on clutter, scenes of several shapes, and the same as files."""
