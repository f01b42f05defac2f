"""Tasks in use: cut out, exported, served, measured."""
