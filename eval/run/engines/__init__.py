"""Who decodes: this process, vLLM, or an endpoint; one small protocol, chosen by name."""
