"""Real processes on real devices: the only ring that imports Ray."""
