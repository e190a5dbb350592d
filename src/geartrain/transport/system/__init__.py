"""Endpoints about the server itself, which belong to no protocol."""
