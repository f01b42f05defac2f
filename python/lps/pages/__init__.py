"""The page that shows runs: what is collected of them, its figures as SVG, and the HTML around them."""

PAGE = "report.html"  # its name beside the runs
