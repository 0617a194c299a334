"""Models: loading, their forward over packed and padded rows, what each supports."""
