"""The steps of a training: set-up, checks, logs and printed lines."""
