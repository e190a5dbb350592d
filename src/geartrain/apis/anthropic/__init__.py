"""Anthropic's API for messages: bodies to a model's input and back. Pure.

It is a chat in another form: what the forms have in common is in `apis.openai`. Source: the types of the package
`anthropic`, version 2.13.0.
"""
