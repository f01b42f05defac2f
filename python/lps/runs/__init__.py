"""A run: its settings, what it shows and what it leaves behind."""
