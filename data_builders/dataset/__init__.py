"""A built dataset as it lies on disk."""
