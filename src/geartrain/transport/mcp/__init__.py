"""The Model Context Protocol: each model is a tool, over HTTP and over stdin and stdout."""
