"""Pure decisions and data: no asyncio, no clock, no randomness, no logging, no I/O."""
