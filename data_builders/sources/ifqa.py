"""IfQA (Yu et al., EMNLP 2023): what would be so if the world were not as the passage says?

The 700 test questions of the full split are PIPER's. Some training questions stand word for word in the test or
in the development file and are left out. The few-shot split deals the same questions out differently: it is never
read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from d2e_sft.data.sample import EventSample, Split
from data_builders.raw.bad_rows import MISSING, BadRowError
from data_builders.raw.fields import text_field, text_list
from data_builders.raw.reader import RawInput
from data_builders.raw.source import Input, Job, RawFile, Source, SplitRows
from data_builders.sources.rows import first_of_each

_COMMIT = "9c9adf1caa824c3689a035fa8522a4db05db54e1"
_URL = f"https://raw.githubusercontent.com/wyu97/IfQA/{_COMMIT}/dataset"
_LICENCE = "not stated by the publisher"


def _file(split: str, sha256: str, size: int) -> RawFile:
    name = f"full_split/{split}.json"
    return RawFile(name=name, url=f"{_URL}/{name}", commit=_COMMIT, sha256=sha256, bytes=size)


TRAIN = _file("train", "f97bf0684a628265ffea2998a58a6d9805756269c185799517c2a0d98b6d4da5", 2_401_854)
DEV = _file("dev", "cd36981d88366a212b9ab11769d32933bfbab2cd3ad55f8103e279d21c808721", 684_340)
TEST = _file("test", "0b0fa25c49a6aa960a270e458d43a9620978591e9bc2e90f001135ba9bac5115", 704_040)


@dataclass(frozen=True)
class _Row:
    number: int
    question: str
    answers: tuple[str, ...]
    context: str

    @property
    def question_key(self) -> str:
        return " ".join(self.question.lower().split())


def read(job: Job) -> dict[Split, SplitRows]:
    """Build train, dev and test (700 rows, PIPER table 7)."""
    result: dict[Split, SplitRows] = {}
    met: set[str] = set()
    # The test first: what it holds is left out of the others, and what dev holds is left out of train.
    for split in ("test", "dev", "train"):
        if split not in job.files:
            continue
        raw = job.input(split, split)
        rows = raw.parse(raw.json_items(), _parse)
        result[split] = SplitRows([], rows_read=len(rows))
        _finish(raw, result[split], rows, met)
        met |= {row.question_key for row in rows}
    return result


def _finish(raw: RawInput, result: SplitRows, rows: list[_Row], met: set[str]) -> None:
    log = result.filters
    kept = log.record(
        "no blank answer",
        "samples with a blank answer are excluded (PIPER)",
        rows,
        [row for row in rows if row.answers],
    )
    if raw.split != "test":
        kept = log.record(
            "questions of the test" if raw.split == "dev" else "questions of the test and development files",
            "the question stands there too (letter case ignored)",
            kept,
            [row for row in kept if row.question_key not in met],
        )
    if raw.split == "train":
        kept = log.record(
            "repeated questions",
            "the same question more than once would be trained on twice; the first is kept",
            kept,
            first_of_each(kept, lambda row: row.question_key),
        )
    result.samples = raw.samples(kept, lambda row: _sample(raw, row), lambda row: row.number)


def _parse(number: int, row: dict[str, Any]) -> _Row:
    passages = [once(passage) for passage in text_list("context", row.get("context", MISSING)) if passage]
    if not passages:
        raise BadRowError.at("context", row.get("context", MISSING), "at least one passage")
    answers = dict.fromkeys(filter(None, text_list("answers", row.get("answers", MISSING))))
    return _Row(number, text_field(row, "question"), tuple(answers), " ".join(dict.fromkeys(passages)))


def once(passage: str) -> str:
    """The passage with single blanks; some published ones are their own text twice, which is said once."""
    words = passage.split()
    half = len(words) // 2
    return " ".join(words[:half] if words[:half] == words[half:] else words)


def _sample(raw: RawInput, row: _Row) -> EventSample:
    return EventSample(
        id=f"ifqa-{raw.split}-{row.number}",
        dataset="ifqa",
        split=raw.split,
        relation="counterfactual",
        format="qa",
        context=row.context,
        question=row.question,
        answers=list(row.answers),
        meta={"source": raw.name, "item": row.number, "licence": _LICENCE},
    )


IFQA = Source(
    name="ifqa",
    format="qa",
    licence=_LICENCE,
    homepage="https://github.com/wyu97/IfQA",
    inputs=(
        Input("train", (TRAIN,), ("train",)),
        Input("dev", (DEV,), ("train", "dev")),
        Input("test", (TEST,), ("train", "dev", "test")),
    ),
    read=read,
    redistribution="the publishers state no licence",
    splits=("train", "dev", "test"),
    notes={
        "context": "the one to three gold passages, one after the other, each said once (18 hold their "
        "text twice); the answer does not stand in them word "
        "for word in about a quarter of the rows",
    },
)
