"""The version of the distribution; pyproject.toml and the native library both read it from here."""

__version__ = "0.1.0"
