"""Counterfactual swaps: answer and context get another entity, so that only who reads can answer."""
