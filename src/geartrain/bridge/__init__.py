"""The parent's side of a worker: spawn, handshake, slots, channel, kill, reap."""
