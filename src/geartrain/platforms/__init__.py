"""Models on the platforms of others: objects for Kubernetes, KServe and Seldon, and images of containers."""
