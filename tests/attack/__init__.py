"""Attacks on what the project promises: every module here with an `ATTACKS`. `make attack` runs them all."""
