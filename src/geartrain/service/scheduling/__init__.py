"""The queue, the calls that are made from it, and the life of each prediction in them."""
