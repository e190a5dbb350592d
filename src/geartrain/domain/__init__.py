"""The domain: data and rules. It has no event loop, no clock and no socket."""
