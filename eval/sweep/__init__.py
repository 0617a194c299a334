"""Sweeps: many trainings of one recipe, scored by `d2e eval`, probed while they train, or both."""
