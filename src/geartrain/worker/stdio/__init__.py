"""What a model prints."""
