"""The doors: they decode, call the service and encode."""
