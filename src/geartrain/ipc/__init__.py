"""Shared by parent and worker: messages, frames, and the transports of payloads."""
