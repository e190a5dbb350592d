"""Endpoints whose bodies are the model's own, or those of other servers."""
