"""The file ``model.lps``."""
