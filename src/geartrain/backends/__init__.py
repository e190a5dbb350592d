"""Models that are files: one module for each format, behind one small interface. Imported by the worker alone."""
