"""What travels inside every exported model folder; `generate.py` needs only torch and transformers."""
