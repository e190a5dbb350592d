"""Scripts that were written for other servers: each contract is a class that takes whole requests."""
