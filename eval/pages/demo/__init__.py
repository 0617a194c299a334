"""A page to try a model: plain and debiased answers side by side, and the answer without the context."""
