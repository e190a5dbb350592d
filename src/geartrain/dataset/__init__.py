"""Data sets: the rows of a file go through a model, and their outputs into another file."""
