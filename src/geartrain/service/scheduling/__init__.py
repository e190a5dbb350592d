"""Who runs what, and when: the queue, the calls that it is cut into, and the life of each prediction in them."""
