"""The wire: bytes to exchanges and back. It knows no model and no route."""
