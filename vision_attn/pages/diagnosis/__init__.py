"""The page of a diagnosis, and the function that makes it."""
