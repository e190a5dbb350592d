"""The life of a worker: its session, its control channel, and the engines that run calls."""
