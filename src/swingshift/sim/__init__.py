"""The virtual world: a virtual-time event loop and ports driven by cost models."""
