"""Change what a network computes as it runs: heads, tokens, branches, states of another photo."""
