"""Tensors, and how they are written as bytes and as JSON."""
