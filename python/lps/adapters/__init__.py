"""Streams of other libraries as tasks of ours, and our methods inside theirs; each module needs its library."""
