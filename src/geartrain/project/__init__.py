"""Models on disk: finding one, and reading its `cog.yaml`."""
