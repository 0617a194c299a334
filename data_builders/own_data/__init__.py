"""A user's own rows as a source: a YAML file says which columns of which files are the parts of a sample."""
