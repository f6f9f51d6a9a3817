"""The origin of every value of a run: which token, through which attention calls."""
