"""OpenAI's API: bodies to a model's input and back. Pure.

Source: `openapi.json` of OpenAI, version 2.3.0.
"""
