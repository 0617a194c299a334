"""Which file `d2e score` reads where a folder is named: a folder of official files, or the folder of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from d2e_sft.util.errors import UserError

_SHOWN = 8


def file_in(path: Path, names: Sequence[str], option: str, what: str) -> Path:
    """Return a file itself, or the first of the names that is found in a folder or below, the nearest one first.

    So RUN stands for RUN/eval/BENCH/NAME.

    Args:
        names: best first.
        option: of the command line, for messages.
        what: is expected there, for messages.

    Raises:
        UserError: there is nothing at that place, none of the names in the folder, or one of them several times.
    """
    if path.is_file():
        return path
    if not path.is_dir():
        raise UserError(f"{option} {path}: no such file or folder", remedy=f"expected {what}: {' or '.join(names)}")
    for name in names:
        found = sorted(path.rglob(name), key=lambda file: (len(file.parts), file))
        nearest = [file for file in found if len(file.parts) == len(found[0].parts)]
        if len(nearest) > 1:
            listed = ", ".join(str(file.relative_to(path)) for file in nearest[:_SHOWN])
            raise UserError(
                f"{option} {path}: holds {len(nearest)} files {name}: {listed}", f"name one of them: {option} FILE"
            )
        if nearest:
            return nearest[0]
    held = sorted(f"{item.name}/" if item.is_dir() else item.name for item in path.iterdir())
    more = f" and {len(held) - _SHOWN:,} more" if len(held) > _SHOWN else ""
    raise UserError(
        f"{option} {path}: holds no {' or '.join(names)}; there is {', '.join(held[:_SHOWN]) or 'nothing'}{more}",
        remedy=f"expected {what}; name its folder, or the file itself: {option} FILE",
    )
