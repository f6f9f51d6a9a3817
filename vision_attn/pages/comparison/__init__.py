"""The page of two checkpoints on the same photos."""
