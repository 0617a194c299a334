"""A finished build to its folder: all files at once, or none.

Everything is written into a folder beside the results first and moved at the end, the manifest last; so a build that
fails, or is killed, leaves the results of an earlier one as they were, with a manifest that is true of them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from d2e_sft.data.sample import BAD_ROWS_FILE, BadRow, EventSample, Split, write_bad_rows, write_samples
from d2e_sft.util.errors import UserError
from data_builders.build.card import CARD_NAME, write_card
from data_builders.dataset import manifest
from data_builders.raw.source import SPLITS

_ROWS = (*(f"{split}.parquet" for split in SPLITS), BAD_ROWS_FILE)


def check_target(out: Path) -> None:
    """Refuse, before any work, a folder that cannot be written or holds what no build wrote.

    Raises:
        UserError: for either.
    """
    remedy = "name another folder with --out"
    nearest = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise UserError(f"{out}: {nearest} is a file; expected a folder for the results", remedy)
    if not _writable(nearest):
        raise UserError(f"{out}: {nearest} cannot be written; expected a folder for the results", remedy)
    strangers = [name for name in (*_ROWS, manifest.MANIFEST_NAME, CARD_NAME) if (out / name).exists()]
    if strangers and not manifest.is_ours(out):
        raise UserError(
            f"{out}: holds {', '.join(strangers)}, which no build of this project wrote and this one would overwrite",
            remedy=f"{remedy}, or move the files away",
        )


def _writable(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK)


def write_build(
    out: Path, rows: Mapping[Split, Sequence[EventSample]], bad: Sequence[BadRow], description: Mapping[str, Any]
) -> list[Path]:
    """Write `<split>.parquet` for each split with rows, `bad_rows.jsonl`, `manifest.json` and `README.md`.

    Args:
        description: the manifest but for its `outputs`.

    Returns:
        the files, manifest and card last.

    Raises:
        UserError: a file cannot be written.
    """
    with _staging(out) as staging:
        for split in SPLITS:
            if rows.get(split):
                write_samples(rows[split], staging / f"{split}.parquet")
        if bad:
            write_bad_rows(bad, staging / BAD_ROWS_FILE)
        outputs = sorted(staging.iterdir())
        described = {**description, "outputs": manifest.describe_outputs(outputs)}
        files = [*outputs, manifest.write_manifest(described, staging), write_card(described, staging)]
        # Without its manifest a folder is no build, so a move that is interrupted cannot pass for one.
        (out / manifest.MANIFEST_NAME).unlink(missing_ok=True)
        for name in set(_ROWS) - {path.name for path in outputs}:
            (out / name).unlink(missing_ok=True)
        for path in sorted(files, key=lambda path: path.name == manifest.MANIFEST_NAME):
            os.replace(path, out / path.name)
    return [out / path.name for path in files]


@contextmanager
def _staging(out: Path) -> Iterator[Path]:
    try:
        out.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".build-", dir=out))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise UserError(
            f"{error.filename or out}: cannot be written ({error.strerror or error})",
            remedy="make room, or name another folder with --out; replies of a judge are kept in its cache",
        ) from None
