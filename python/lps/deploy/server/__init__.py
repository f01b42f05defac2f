"""A server of all tasks of one or several files behind one port.

`catalog` loads files and finds the task that a request means, `engine` batches examples of all tasks and answers them,
`cutouts` keeps cut-out tasks within a budget of memory, `messages` reads requests and writes answers, `metrics` counts.
These know nothing of HTTP: that is the matter of `app`, `connections` and `run`, the only files that import the
packages of the extra `serve`.
"""
