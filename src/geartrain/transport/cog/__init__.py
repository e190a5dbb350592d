"""Cog's HTTP API: of one model at the root, and of each model of several below `/models`."""
