"""Gradients that share out a logit, and the levels of a network at which they are read."""
