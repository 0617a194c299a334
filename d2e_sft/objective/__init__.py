"""The training objective: the loss, how a model computes it in its forward, what is logged of it."""
