"""Evaluation during training: held-out rows, decoded samples, and the probe."""
