"""Real raw files with one change, which pass the first checks of a reader, unlike files of random values."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from data_builders.raw.files import MissingRawFileError
from data_builders.sources import SOURCES
from tests.attack.frame import Attempt, attack
from tests.attack.test_bad_files import survived
from tests.data_builders.conftest import copy_raw_files
from tests.data_builders.reading import read

SOON = "a result or one message, within a second"

_TEXTS = (
    "", "  ", "\ud800", "\0", "x", "9" * 5_000, "²", "٣", "1.5", "-1", "1e9", "[", "A", "<P>", "\u2028", "\n",
    "\t\t", '"', "x" * 100_000,
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 5, 10**400, -(10**30), 1e308, float("nan"), float("inf"), [], {}, [None], [[]], ["x"], [1],
    {"a": 1}, [[0, 10]], [[5, 1]], [[-5, 10**9]], ["a"] * 3_000, *_TEXTS,
)  # fmt: skip
_BYTES = (b"", b"\0", b"\xff", b"\t", b"\n", b",", b'"', b"\xed\xa0\x80", b"9" * 5_000)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_raw_files(tmp_path_factory.mktemp("world"))


def changed(content: bytes, numbers: random.Random) -> bytes:
    """Return the file with one change; a packed file is packed again."""
    if content[:2] == b"\x1f\x8b":
        return gzip.compress(changed(gzip.decompress(content), numbers))
    kind = numbers.random()
    if kind < 0.12:
        place = numbers.randrange(len(content))
        return content[:place] + numbers.choice(_BYTES) + content[place + numbers.choice((0, 1, 5)) :]
    if kind < 0.17:
        return content[: numbers.randrange(len(content))]
    with suppress(ValueError):
        return _as_bytes(_one_value(json.loads(content), numbers))
    lines = content.splitlines()
    number = numbers.randrange(len(lines))
    try:
        lines[number] = _as_bytes(_one_value(json.loads(lines[number]), numbers))
    except ValueError:  # cells
        cells = re.split(rb"([\t,])", lines[number])
        cells[numbers.randrange(len(cells))] = numbers.choice(_TEXTS).encode("utf-8", "surrogatepass")
        lines[number] = b"".join(cells)
    return b"\n".join(lines)


def _as_bytes(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


def _one_value(content: Any, numbers: random.Random) -> Any:
    places = list(_places(content))
    if not places or numbers.random() < 0.02:
        return numbers.choice(_VALUES)
    holder, key = numbers.choice(places)
    kind = numbers.random()
    if kind < 0.15:
        del holder[key]
    elif kind < 0.3:
        other = numbers.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        holder[key] = holder[other]
    elif kind < 0.35 and isinstance(holder, list):
        holder.append(holder[key])
    else:
        holder[key] = numbers.choice(_VALUES)
    return content


@attack("right raw files with one thing changed, each dataset", "bad files", SOON, tries=20)
def test_one_thing_changed(given: Attempt) -> None:
    count = 0
    for name, source in SOURCES.items():
        for file in sorted((given.world / source.raw_folder).rglob("*")) if source.inputs else ():
            if file.is_file():
                whole = file.read_bytes()
                file.write_bytes(changed(whole, given.random))
                for split in source.splits:
                    survived(partial(_read, given.world, name, split))
                file.write_bytes(whole)
                count += 1
    given.things = count


def _read(folder: Path, name: str, split: Any) -> None:
    with suppress(MissingRawFileError):
        read(folder, name, (split,))
