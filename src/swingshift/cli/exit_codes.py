"""What the process ends with."""

FAILED = 1
"""A run failed, or standard output cannot be written."""
USAGE = 2
"""The input is wrong."""
INTERRUPTED = 130
BROKEN_PIPE = 141
"""Nobody reads what is written."""
