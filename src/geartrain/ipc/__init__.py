"""What parent and worker share: messages, frames, and the ways in which payloads travel."""
