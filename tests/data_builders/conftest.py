"""Small raw files in the datasets' real formats, written for these tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from data_builders.build.options import BuildOptions
from data_builders.build.run import build
from tests.data_builders.conflict_rows import CONFLICT_FILES
from tests.data_builders.raw_rows import FILES, SUBSTITUTES
from tests.hub_server import hub
from tests.judge_server import judge, judge_environment, server

__all__ = ["hub", "judge", "judge_environment", "server"]


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A `--raw` folder with a few rows of each downloadable dataset."""
    folder = tmp_path / "raw"
    for name, text in {
        "tracie/iid/tracie_train.txt": tracie_lines(["Lena bakes bread"]),
        "tracie/iid/tracie_test.txt": tracie_lines([f"Omar plants {n} trees" for n in range(10)]),
        "ecare/train.jsonl": ecare_lines(["The road was wet.", "The road was wet.", "The clock stopped."]),
        "ecare/dev_full.jsonl": ecare_lines(["The Clock stopped.", "The soup was cold."]),
        "mctaco/dev_3783.tsv": MCTACO_TRAIN,
        "mctaco/test_9442.tsv": MCTACO_TEST,
        "cider/cider_main.json": json.dumps(CIDER, indent=4),
        **FILES,
        **CONFLICT_FILES,
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    return folder


def tracie_lines(events: list[str]) -> str:
    """For each event four rows: starts and ends, each as a before/after pair with the positive one first."""
    rows = []
    for event in events:
        story = f"{event} early. The rain comes down. Everyone goes home to dry."
        for verb in ("starts", "ends"):
            # With and without a full stop: the key must not care.
            stop = "." if verb == "ends" else ""
            rows.append(f"event: {event}{stop} {verb} before The rain comes down story: {story}\tanswer: positive")
            rows.append(f"event: {event}{stop} {verb} after The rain comes down story: {story}\tanswer: negative")
    return "\n".join(rows) + "\n"


def ecare_lines(premises: list[str]) -> str:
    rows = [
        {
            "index": f"row-{number}",
            "premise": premise,
            "ask-for": "cause",
            "hypothesis1": "It had rained.",
            "hypothesis2": "Nobody came.",
            "label": 0,
            "conceptual_explanation": "Never to be seen.",
        }
        for number, premise in enumerate(premises)
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


MCTACO_TRAIN = (
    "The mayor opened the bridge.\tWhat happened before the opening?\tit was built\tyes\tEvent Ordering\n"
    "The mayor opened the bridge.\tWhat happened before the opening?\tit was built\tyes\tEvent Ordering\n"
    "The mayor opened the bridge.\tWhat happened before the opening?\tit fell down\tno\tEvent Ordering\n"
    "The mayor opened the bridge.\tHow long did it take?\tan hour\tyes\tEvent Duration\n"
)
MCTACO_TEST = (
    'Ann said "stop" and left.\tWhat did Ann do first?\tshe spoke\tyes\tEvent Ordering\n'
    'Ann said "stop" and left.\tWhat did Ann do first?\tshe said "stop"\tyes\tEvent Ordering\n'
    'Ann said "stop" and left.\tWhat did Ann do first?\tshe left\tno\tEvent Ordering\n'
    "Bob slept.\tWhat did Bob do then?\the flew\tno\tEvent Ordering\n"
)


def _triplet(head: str, relation: str, tail: str) -> dict[str, object]:
    return {"head": head, "relation": relation, "tail": tail, "headpos": [0, 1], "tailpos": [2, 3]}


CIDER = [
    {
        "id": "talk-1",
        "utterances": "A: The lamp broke .    it was late .    B: Then I lit a candle .    A: And I read a book . ",
        "triplets": [
            _triplet("lamp broke", "Causes", "lit a candle"),
            _triplet("lamp broke", "Before", "read a book"),
            _triplet("read a book", "Simutaneous", "it was late"),
            _triplet("lamp", "IsA", "thing"),
        ],
    },
    {
        "id": "talk-2",
        "utterances": "A: I was hungry .    B: So you cooked ?    A: Yes , and we talked . ",
        "triplets": [
            _triplet("hungry", "Causes", "cooked"),
            # Its reverse is annotated too, so neither direction may be called false.
            _triplet("cooked", "Causes", "hungry"),
            _triplet("cooked", "Simutaneous", "we talked"),
            _triplet("hungry", "Before", "we talked"),
            _triplet("cooked", "NotCauses", "hungry"),
        ],
    },
]


@pytest.fixture
def raw_with_substitutes(raw: Path) -> Path:
    """The same folder with substitutes in place of the official files that have one."""
    for official in ("tempreason/test_l3.json", "timeqa/test.hard.json", "cosmosqa/train.csv"):
        (raw / official).unlink()
    for name, content in SUBSTITUTES.items():
        (raw / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return raw


@pytest.fixture
def built(raw: Path, tmp_path: Path) -> Path:
    """TRACIE, e-CARE and ESTER, built from the small raw files."""
    build(BuildOptions(["tracie", "ecare", "ester"], tmp_path / "built", raw))
    return tmp_path / "built"
