"""Predictions that a store knows: claimed before they run, taken up again after a crash, ended once."""
