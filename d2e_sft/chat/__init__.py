"""A conversation with a model about a context, in a terminal or from a pipe: `d2e chat`."""
