"""The examples, run as a reader would."""
