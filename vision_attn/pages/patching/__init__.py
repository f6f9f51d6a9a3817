"""The page of where a class is decided, and the function that makes it."""
