"""A page to try a model: plain and debiased answers side by side, and what it says without the context."""
