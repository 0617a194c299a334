"""Tests never wait for the Hub: a name that is not on disk must fail at once, as it does without a network."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
