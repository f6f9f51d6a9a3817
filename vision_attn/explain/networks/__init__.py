"""How the tokens of a network lie on its image, and which chains of attention are understood."""
