"""`d2e serve`: pairs as a stream on vLLM's AsyncLLM, and vLLM's server around it."""
