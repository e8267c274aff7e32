"""Configuration: one pydantic schema, YAML layers and dotted overrides."""
