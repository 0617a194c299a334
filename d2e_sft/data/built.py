"""Whether a file of rows still is what its build wrote: the manifest beside it has its checksum.

A file that was edited after the build is read all the same, since filtering rows by hand is usual; but scores of
another benchmark, or a model of other data, must not go by the old name without a word.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

MANIFEST = "manifest.json"


def changed_since_build(file: Path, sha256: str) -> str | None:
    """What has changed, as one sentence; None where the file is the manifest's, or there is no word of it.

    Args:
        file: of rows, perhaps in a folder of `d2e data build`.
        sha256: of the file as it is now.
    """
    try:
        content = json.loads((file.parent / MANIFEST).read_text(encoding="utf-8"))
        expected = content["outputs"][file.name]["sha256"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if content.get("project") != "d2e-sft" or expected == sha256:
        return None
    return (
        f"{file}: changed after it was built (SHA-256 {sha256[:12]}…; {MANIFEST} says {str(expected)[:12]}…), so what "
        "the manifest and its card say of its rows is not true any more; build it again, or keep edited rows in a "
        "folder of their own"
    )


def warn_if_changed(file: Path, sha256: str) -> None:
    """Say it on stderr."""
    if told := changed_since_build(file, sha256):
        print(f"warning: {told}", file=sys.stderr)
