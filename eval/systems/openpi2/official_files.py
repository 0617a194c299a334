"""Where the official files lie: in the repository's folders, or all in one."""

from __future__ import annotations

from pathlib import Path

from d2e_sft.util.errors import UserError

COMMIT = "90acda8957e232decad40c41d86af79800bdd68e"
HOMEPAGE = f"https://github.com/allenai/openpi-dataset/tree/{COMMIT}/v2.0"
_MINI = "source/cluster/archived/comparison_data"
_FOLDERS = ("", "v2.0", "v2.0/data", "data", "cluster_mini", "v2.0/cluster_mini", _MINI, f"v2.0/{_MINI}")


def find_official(data: Path, name: str, *, needed_by: str) -> Path:
    """The path of an official file.

    Args:
        data: the folder with the official files, or one of them.

    Raises:
        UserError: it is not there.
    """
    found = look_for(data, name)
    if found is None:
        raise UserError(
            f"--data {data}: holds no {name}, which {needed_by} needs; looked in the folder itself and in "
            f"{', '.join(filter(None, _FOLDERS))}",
            remedy=f"d2e data download openpi2 gets it; or take it from {HOMEPAGE}",
        )
    return found


def look_for(data: Path, name: str) -> Path | None:
    """The same, or None."""
    root = data if data.is_dir() else data.parent
    return next((path for folder in _FOLDERS if (path := root / folder / name).is_file()), None)
