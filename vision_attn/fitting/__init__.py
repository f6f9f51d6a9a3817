"""A config in, a folder out: training, validation, test and prediction."""
