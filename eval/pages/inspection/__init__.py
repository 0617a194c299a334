"""What a model thinks, token by token: the original, the imagined and the debiased distribution."""
