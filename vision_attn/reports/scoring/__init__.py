"""Score heatmaps: which methods to trust for a model and its data."""
