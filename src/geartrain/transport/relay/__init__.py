"""Hands requests over to the server that has the prediction, and its answers back."""
