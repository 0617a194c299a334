"""PIPER for lm-evaluation-harness: its rows as tasks, and the debiased model as a model class."""
