"""Carry rows of attention through a layer in tiles, without its n x n matrix."""
