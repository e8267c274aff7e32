"""Tasks: where prompts come from and how responses are scored. Heavy imports wait until needed."""
