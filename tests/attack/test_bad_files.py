"""Bad files and bad texts: any content, or raw files with one change, give a result or one message in a second."""

import gzip
import json
import random
import re
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from d2e_sft.config.recipe import load_recipe
from d2e_sft.data.sample import EventSample, read_samples, write_bad_rows, write_samples
from d2e_sft.util.errors import UserError
from data_builders.raw.files import MissingRawFileError
from data_builders.sources import SOURCES
from eval.score.extract import extract_answer
from eval.systems.crepe.parse import read_change, read_code, read_lettered_levels, read_level, read_option
from tests.attack.frame import Attempt, attack
from tests.data_builders.conftest import copy_raw_files
from tests.data_builders.reading import read

SOON = "a result or one message, within seconds"

LONGEST_SECONDS = 10.0  # of processor time; 1 MB takes 2 s on a slow processor, and minutes if time is not linear
EXAMPLES = 25  # of one attempt

_characters = st.characters(codec=None, exclude_categories=())  # lone surrogates and NUL among them
texts = st.text(_characters, max_size=40) | st.sampled_from(["", "\ud800", "\0", "9" * 5_000, "x" * 100_000, "﻿"])
numbers = st.integers() | st.floats() | st.sampled_from([10**400, -(10**4_000), float("nan"), float("inf"), 1e308])
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
deep = st.integers(1, 100_000).map(lambda depth: "[" * depth + "]" * depth)


def survived(what: Callable[[], object]) -> None:
    """Assert that it gives a result or a short UserError within seconds."""
    started, said = time.process_time(), ""
    try:
        what()
    except UserError as error:
        said = str(error)
    assert len(said) < 20_000, f"a message of {len(said):,} characters"
    seconds = time.process_time() - started
    assert seconds < LONGEST_SECONDS, f"took {seconds:.1f} s"


def tried(given_: Attempt, strategy: st.SearchStrategy[Any], check: Callable[[Any], None]) -> int:
    """Check examples of the strategy, and return how many; the smallest failing one is raised."""
    count = 0

    @seed(given_.random.getrandbits(64))
    @settings(
        max_examples=EXAMPLES, database=None, deadline=None, print_blob=False, suppress_health_check=list(HealthCheck)
    )
    @given(strategy)
    def examine(example: Any) -> None:
        nonlocal count
        count += 1
        check(example)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        examine()
    return count


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_raw_files(tmp_path_factory.mktemp("world"))


GOOD = EventSample(
    id="s", dataset="d", split="test", relation="causal", format="qa", context="It rained.", question="Why?",
    answers=["rain"],
).model_dump()  # fmt: skip


@attack("rows of samples with anything in any field", "bad files", SOON, tries=40)
def test_sample_files(given: Attempt) -> None:
    def check(change: tuple[dict[str, Any], str]) -> None:
        row, nested = {**GOOD, **change[0]}, change[1]
        line = json.dumps(row)[:-1] + (f', "meta": {{"x": {nested}}}}}' if nested else "}")
        file = given.folder / "rows.jsonl"
        file.write_bytes(line.encode("utf-8", "surrogatepass") + b"\n")

        def use() -> None:
            bad: list[Any] = []
            try:
                samples = read_samples(file, bad_rows=bad)
            finally:
                write_bad_rows(bad, given.folder / "bad.jsonl")
            for ending in ("jsonl", "parquet"):
                write_samples(samples, given.folder / f"again.{ending}")
                assert read_samples(given.folder / f"again.{ending}") == samples

        survived(use)

    changes = st.dictionaries(st.sampled_from(sorted(GOOD)) | texts, values, max_size=3)
    given.things = tried(given, st.tuples(changes, st.just("") | deep), check)


@attack("recipes with anything in any section", "bad files", SOON, tries=40)
def test_recipes(given: Attempt) -> None:
    file = given.folder / "r.yaml"

    def check(content: bytes) -> None:
        file.write_bytes(content)
        survived(lambda: load_recipe(file).as_yaml())

    def as_recipe(sections: dict[str, Any]) -> bytes:
        base = {"data": {"train": "x"}, "train": {"output_dir": "x"}}
        return json.dumps({**base, **sections}).encode("utf-8", "surrogatepass")

    names = st.sampled_from(["extends", "model", "data", "train", "d2e", "eval", "r.yaml"])
    keys = (
        st.sampled_from(["train", "seed", "alpha", "learning_rate", "output_dir", "objective", "max_length"]) | texts
    )
    sections = st.dictionaries(names, values | st.dictionaries(keys, values, max_size=3) | st.just("r.yaml"))
    given.things = tried(given, sections.map(as_recipe) | st.binary(max_size=60), check)


_PIECES = st.sampled_from(
    [
        "answer is ", "Answer: ", "The correct option is:", "(A)", "A. ", "B) it fell", " and ", "not positive ", "\n",
        "<think>", "</think>", "very likely ", "Step 1: ", "def f(self):\n", 'event0.change = "more likely"\n', "**",
        "likelihood change is ", "Options[", "```python\n", "class A:\n", "self.a.b = True\n", "İ", "\u2028", "event",
    ]
)  # fmt: skip
outputs = st.lists(_PIECES | texts, max_size=12).map("".join) | st.tuples(_PIECES, st.integers(1, 1_000_000)).map(
    lambda piece: (piece[0] * (piece[1] // len(piece[0]) + 1))[:1_000_000]
)


@attack("outputs up to 1 MB to answer extraction", "bad files", SOON, tries=40)
def test_extraction(given: Attempt) -> None:
    options = st.lists(texts.filter(str.strip), min_size=1, max_size=4, unique=True)
    how = st.tuples(
        outputs, options, st.sampled_from(["nli", "scq", "mcq", "qa"]), st.sampled_from(["zero_shot", "cot"])
    )

    def check(example: tuple[str, list[str], str, Any]) -> None:
        output, candidates, fmt, setting = example
        marker = "The correct option is:" if len(output) % 2 else ""
        survived(lambda: extract_answer(output, fmt=fmt, options=candidates, marker=marker, setting=setting))

    given.things = tried(given, how, check)


@attack("replies up to 1 MB to the CREPE code parser", "bad files", SOON, tries=40)
def test_crepe_code(given: Attempt) -> None:
    def check(reply: str) -> None:
        survived(lambda: read_code(reply, 5, 3, "official"))
        survived(lambda: read_code(reply, 5, 3, "lenient"))
        survived(lambda: read_lettered_levels(reply, 5))
        for reader in (read_level, read_change, read_option):
            survived(lambda reader=reader: reader(reply))

    given.things = tried(given, outputs, check)


def _read(folder: Path, name: str, split: Any) -> None:
    with suppress(MissingRawFileError):
        read(folder, name, (split,))


@attack("raw files with anything in them, each dataset", "bad files", SOON, tries=40)
def test_raw_files(given: Attempt) -> None:
    """Replace every file of one source by random content; each try takes the next source."""
    names = sorted(name for name, source in SOURCES.items() if source.inputs)
    name = names[given.number % len(names)]
    source = SOURCES[name]
    folder = given.folder / source.raw_folder

    def check(content: bytes) -> None:
        for file in source.official:
            (folder / file.name).parent.mkdir(parents=True, exist_ok=True)
            (folder / file.name).write_bytes(content)
        for split in source.splits:
            survived(partial(_read, given.folder, name, split))

    rows = values.map(lambda value: json.dumps(value).encode("utf-8", "surrogatepass"))
    lines = st.lists(rows | st.binary(max_size=40), max_size=4).map(b"\n".join)
    given.things = tried(
        given, lines | deep.map(str.encode) | st.lists(rows).map(lambda r: b"[" + b",".join(r) + b"]"), check
    )


# Real raw files with one change, which pass the first checks of a reader, unlike files of random values.
_TEXTS = (
    "", "  ", "\ud800", "\0", "x", "9" * 5_000, "²", "٣", "1.5", "-1", "1e9", "[", "A", "<P>", "\u2028", "\n",
    "\t\t", '"', "x" * 100_000,
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 5, 10**400, -(10**30), 1e308, float("nan"), float("inf"), [], {}, [None], [[]], ["x"], [1],
    {"a": 1}, [[0, 10]], [[5, 1]], [[-5, 10**9]], ["a"] * 3_000, *_TEXTS,
)  # fmt: skip
_BYTES = (b"", b"\0", b"\xff", b"\t", b"\n", b",", b'"', b"\xed\xa0\x80", b"9" * 5_000)


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
