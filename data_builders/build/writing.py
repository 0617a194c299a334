"""Write a finished build to its folder: all files at once, or none.

Files are first written to a temporary folder and moved at the end, the manifest last. So a build that fails or is
killed leaves the results of an earlier one, and a manifest that matches them. The next build removes the temporary
folders of killed ones.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from d2e_sft.data.bad_rows import BAD_ROWS_FILE, BadRow, write_bad_rows
from d2e_sft.data.built import MANIFEST
from d2e_sft.data.sample import EventSample, Split, write_samples
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import write_json
from d2e_sft.util.locks import temporary_folder
from data_builders.build.card import CARD_NAME, render_card
from data_builders.dataset import manifest
from data_builders.raw.source import SPLITS

_ROWS = (*(f"{split}.parquet" for split in SPLITS), BAD_ROWS_FILE)
_FILES = (*_ROWS, MANIFEST, CARD_NAME)


def check_target(out: Path) -> None:
    """Raise UserError, before any work, for a folder that cannot be written or has files that no build wrote."""
    remedy = "name another folder with --out"
    nearest = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        problem = "cannot be written" if nearest.is_dir() else "is a file"
        raise UserError(f"{out}: {nearest} {problem}; expected a folder for the results", remedy)
    others = [name for name in _FILES if (out / name).exists()]
    if others and not manifest.is_ours(out):
        raise UserError(
            f"{out}: contains {', '.join(others)}, which no build of this project wrote and this one would overwrite",
            remedy=f"{remedy}, or move the files away",
        )


def write_build(
    out: Path, rows: Mapping[Split, Sequence[EventSample]], bad: Sequence[BadRow], description: Mapping[str, Any]
) -> list[Path]:
    """Write `<split>.parquet` for each split with rows, `bad_rows.jsonl`, `manifest.json` and `README.md`.

    Return them, manifest and card last; UserError if one cannot be written. The `description` lacks only `outputs`.
    """
    try:
        with temporary_folder(out, ".build-", _is_leftover) as staging:
            for split in filter(rows.get, SPLITS):
                write_samples(rows[split], staging / f"{split}.parquet")
            if bad:
                write_bad_rows(bad, staging / BAD_ROWS_FILE)
            outputs = sorted(staging.iterdir())
            described = {**description, "outputs": manifest.describe_outputs(outputs)}
            write_json(staging / MANIFEST, described)
            (staging / CARD_NAME).write_text(render_card(described), encoding="utf-8")
            rows_files = [path.name for path in outputs]
            # A folder without a manifest is not a build, so an interrupted move cannot pass for one.
            for name in {MANIFEST, *_ROWS}.difference(rows_files):
                (out / name).unlink(missing_ok=True)
            for name in (*rows_files, CARD_NAME, MANIFEST):
                os.replace(staging / name, out / name)
    except OSError as error:
        raise UserError(
            f"{error.filename or out}: cannot be written ({error.strerror or error})",
            remedy="make room, or name another folder with --out; replies of a judge are kept in its cache",
        ) from None
    return [out / name for name in (*rows_files, MANIFEST, CARD_NAME)]


def _is_leftover(folder: Path) -> bool:
    """Whether a folder has nothing but what a build writes: a user may give a folder of their own such a name."""
    return {path.name for path in folder.iterdir() if path.suffix != ".partial"} <= {*_FILES}
