"""The path of the tokens: which call attends over what, from the patches to the output."""
