"""fit, validate, test and predict."""
