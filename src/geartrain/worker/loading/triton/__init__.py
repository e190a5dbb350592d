"""Models of Triton's Python backend: the module that they import, and how their classes run here."""
