"""Examples of sequences and questions, drawn or written."""
