"""OpenPI2.0."""
