"""OpenPI2.0 (Zhang et al., EACL 2024): which attributes of which entities change in the steps of a procedure."""
