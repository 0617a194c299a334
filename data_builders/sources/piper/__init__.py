"""The datasets of the PIPER benchmark."""
