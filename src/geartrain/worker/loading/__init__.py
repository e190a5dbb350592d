"""Loads a model: finds its runner, and reads its signature."""
