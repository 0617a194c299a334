"""CREPE (Zhang et al., Findings of EACL 2023): how steps of a procedure change the likelihood of events."""
