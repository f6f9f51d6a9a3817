"""What is wrong with a network that attends: its heads, its tokens, its chances, over photos."""
