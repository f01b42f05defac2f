"""A run: its settings, progress, directory, checkpoints and results."""
