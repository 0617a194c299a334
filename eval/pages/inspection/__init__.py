"""The original, imagined and debiased distributions of a model, token by token."""
