"""Learn-Prune-Share: its settings, and how it learns a task."""
