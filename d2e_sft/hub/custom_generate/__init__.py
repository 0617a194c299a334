"""What travels inside every exported model folder; `generate.py` needs torch and transformers alone."""
