"""Models as other servers have them: each reader makes our settings of a file of theirs."""
