"""The control plane: one asyncio process that holds all control state. Imports neither ray nor torch."""
