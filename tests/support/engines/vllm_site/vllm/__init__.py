"""A stand-in for vLLM with the part of its interface that the backend uses, for `sys.path`.

The engine goes on with a prompt by its words in capitals, a word at a time. It waits in a word that is the path of a
gate.
"""

__version__ = "0.33.0"
