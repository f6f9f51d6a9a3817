"""What a person asks for, from Python: values in, values and files out."""
