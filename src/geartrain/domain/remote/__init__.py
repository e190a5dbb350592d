"""Models and weights that lie elsewhere: how they are named, and how far their download has come."""
