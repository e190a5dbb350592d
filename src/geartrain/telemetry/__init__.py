"""Traces with OpenTelemetry: the one place that knows it, for the server and for the worker."""
