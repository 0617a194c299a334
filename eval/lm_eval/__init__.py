"""PIPER for lm-evaluation-harness: its rows as tasks, and debiased decoding as a model class."""
