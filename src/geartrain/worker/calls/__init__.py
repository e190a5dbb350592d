"""A call in the worker, from its message to its reports."""
