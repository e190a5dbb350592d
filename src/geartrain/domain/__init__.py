"""The pure words of the house: no loop, no clock, no socket."""
