"""The workers of models as the service sees them: their pool, their warm-up, and workers on demand."""
