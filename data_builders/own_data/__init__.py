"""A user's own rows as a source: a YAML file maps the columns of files to the parts of a sample."""
