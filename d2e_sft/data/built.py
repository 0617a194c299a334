"""Check whether a file of rows is as its build wrote it, by the checksum in the manifest next to it."""

from __future__ import annotations

import json
from pathlib import Path

from d2e_sft.util.terminal import warn

MANIFEST = "manifest.json"


def warn_if_changed(file: Path, sha256: str) -> None:
    """Warn if a file (its checksum is `sha256`) differs from its manifest: results must not keep the old name."""
    try:
        content = json.loads((file.parent / MANIFEST).read_text(encoding="utf-8"))
        expected = content["outputs"][file.name]["sha256"]
    except (OSError, ValueError, KeyError, TypeError):  # no manifest lists it
        return
    if content.get("project") == "d2e-sft" and expected != sha256:
        warn(
            f"{file}: changed after it was built (SHA-256 {sha256[:12]}…; {MANIFEST} says {str(expected)[:12]}…), so "
            "the manifest and its card no longer describe its rows; build it again, or keep edited rows in their own "
            "folder"
        )
