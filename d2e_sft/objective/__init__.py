"""The training objective: its loss, the model forward that computes it, and its logged metrics."""
