"""The page of what each part of a network is worth, and the function that makes it."""
