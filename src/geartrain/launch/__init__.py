"""Servers as processes of their own. Nothing of a server is imported: what is known of it is its command line."""
