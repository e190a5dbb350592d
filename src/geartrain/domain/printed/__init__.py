"""Printed text of a model: as a terminal would show it, line by line, and progress bars at a bounded rate."""
