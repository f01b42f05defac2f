"""Learn-Prune-Share."""
