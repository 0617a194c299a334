"""Check whether a file of rows is as its build wrote it, by the checksum in the manifest next to it.

Edited files are used, with a warning: results on them must not silently carry the old name.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

MANIFEST = "manifest.json"


def changed_since_build(file: Path, sha256: str) -> str | None:
    """Compare a file's checksum with the manifest; None if it is the same or no manifest lists it, else a sentence."""
    try:
        content = json.loads((file.parent / MANIFEST).read_text(encoding="utf-8"))
        expected = content["outputs"][file.name]["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if content.get("project") != "d2e-sft" or expected == sha256:
        return None
    return (
        f"{file}: changed after it was built (SHA-256 {sha256[:12]}…; {MANIFEST} says {str(expected)[:12]}…), so the "
        "manifest and its card no longer describe its rows; build it again, or keep edited rows in their own folder"
    )


def warn_if_changed(file: Path, sha256: str) -> None:
    """Print a warning on stderr if the file has changed."""
    if change := changed_since_build(file, sha256):
        print(f"warning: {change}", file=sys.stderr)
