"""The handlers of OpenAI's API."""
