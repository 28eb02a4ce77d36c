"""Linearise frozen ViTs without labels, on tasks that need attention, and measure what remains of the teacher."""
