"""Counterfactual swaps: answer and context get another entity, so the answer requires the context."""
