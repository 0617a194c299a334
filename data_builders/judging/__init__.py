"""The judge's jobs on data: does the context support the answer, and which of its sentences help."""
