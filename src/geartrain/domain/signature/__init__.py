"""The signature of a runner, the JSON schema of it, and whether an input satisfies it."""
