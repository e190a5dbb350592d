"""HTTP: Cog's API on uvicorn and Starlette."""
