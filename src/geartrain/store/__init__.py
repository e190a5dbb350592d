"""Stores of predictions: SQLite in a file of one server, Postgres for servers that share it."""
