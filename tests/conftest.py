"""A shell without job control has what it starts in the background ignore Ctrl-C, and so whatever that starts.

Tests that send SIGINT to processes of their own would wait for ever.
"""

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
