"""The child process: it runs the author's code and nothing else."""
