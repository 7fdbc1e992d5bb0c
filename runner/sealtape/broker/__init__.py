"""The only door of a record session: a small HTTP server on a unix socket, outside the sandbox.

`python -m sealtape.broker` is the process that holds the keys; `door` and `intake` are the
host's side of it. Nothing is imported here, so that the process loads no more than it needs.
"""
