"""The Model Context Protocol (MCP): messages, tools and results, to domain values and back. Pure.

Source: the revisions 2024-11-05 to 2026-07-28 of the specification, https://modelcontextprotocol.io/specification.
"""
