"""Subcommands of `d2e data` that ask a model with the engines of the evaluation."""
