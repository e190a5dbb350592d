"""A prediction from its request to its end: its events, its states, and the calls that run it."""
