"""A model on disk: its name, the checks and checksums of its folder, its identity, the embedded default."""
