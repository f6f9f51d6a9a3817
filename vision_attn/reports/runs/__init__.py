"""Runs of training, validation, test and prediction: a config in, a folder of files out."""
