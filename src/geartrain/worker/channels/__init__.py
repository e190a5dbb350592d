"""The worker's ends of its channels and slots."""
