"""The page at `/` for browsers, and the files that it is made of."""
