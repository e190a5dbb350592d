"""Printed text of a model."""
