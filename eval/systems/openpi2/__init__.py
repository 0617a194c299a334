"""OpenPI2.0 (Zhang et al., EACL 2024): attributes of entities that change in the steps of a procedure."""
