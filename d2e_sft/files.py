"""Small helpers for files that several packages need."""

from __future__ import annotations

import hashlib
from pathlib import Path


def sha256_of(path: Path) -> str:
    """The file's SHA-256 in hexadecimal digits."""
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()
