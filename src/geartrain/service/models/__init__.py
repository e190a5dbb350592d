"""Models: their versions, the deployments that serve these, and how they come and go."""
