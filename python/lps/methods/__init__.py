"""Ways to learn a stream of tasks."""
