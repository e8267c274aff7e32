"""Inference engines. The default one decodes Hugging Face models with torch in its own thread."""
