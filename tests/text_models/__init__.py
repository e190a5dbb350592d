"""Tests with the libraries of language models: `make recipes` carries them out."""
