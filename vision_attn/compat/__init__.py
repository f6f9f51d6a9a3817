"""Reaches into private parts of other libraries, with the versions they were tried with."""
