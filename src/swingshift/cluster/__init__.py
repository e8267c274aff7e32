"""Real processes on real devices: the only ring that imports Ray."""

import os

if os.environ.get("RAY_ADDRESS", "").rpartition(":")[0].strip("[]") in ("", "127.0.0.1", "localhost", "::1"):
    # A cluster of our own listens on loopback only. Ray replaces loopback addresses by the machine's outside one
    # unless clusters of several machines are switched off, and reads the switch when it is imported.
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
