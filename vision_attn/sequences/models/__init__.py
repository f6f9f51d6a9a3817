"""Networks that write sequences or answer questions."""
