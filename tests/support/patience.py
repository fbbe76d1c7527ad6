"""How long tests wait for real processes, sockets and threads."""

PATIENCE = 180.0
"""Seconds after which what must happen counts as never happening. No test is slower for it, and on a machine with ten
times its load none fails for it; what must happen *soon* is ordered by events, or shown by a deadline of the gateway's
that is longer than this."""
