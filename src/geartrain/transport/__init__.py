"""The transports: they decode requests, call the service and encode its answers."""
