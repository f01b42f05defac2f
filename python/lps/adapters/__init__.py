"""Streams of other libraries as tasks of ours, and our methods inside theirs; each module needs its library."""

from lps.adapters.libraries import check_torchvision

check_torchvision()  # both libraries import it; here, so that it comes before either
