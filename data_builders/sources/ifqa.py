"""IfQA (Yu et al., EMNLP 2023): what would be so if the world were not as the passage says?

The 700 test questions of the full split are PIPER's. Some training questions stand word for word in the test or
in the development file and are left out. The few-shot split deals the same questions out differently: it is never
read.
"""

from __future__ import annotations

from d2e_sft.data.sample import Split
from data_builders.raw.reader import Draft, RawInput
from data_builders.raw.row import Row
from data_builders.raw.source import Input, Job, RawFile, Samples, Source, SplitRows, github
from data_builders.sources.rows import first_of_each, leave_out_blank

_FILES = github("wyu97/IfQA", "9c9adf1caa824c3689a035fa8522a4db05db54e1", "dataset/full_split")


def _file(split: str, sha256: str, size: int) -> RawFile:
    return _FILES.file(f"full_split/{split}.json", sha256, size, path=f"{split}.json")


TRAIN = _file("train", "f97bf0684a628265ffea2998a58a6d9805756269c185799517c2a0d98b6d4da5", 2_401_854)
DEV = _file("dev", "cd36981d88366a212b9ab11769d32933bfbab2cd3ad55f8103e279d21c808721", 684_340)
TEST = _file("test", "0b0fa25c49a6aa960a270e458d43a9620978591e9bc2e90f001135ba9bac5115", 704_040)


def read(job: Job) -> dict[Split, Samples]:
    """Build train, dev and test (700 rows, PIPER table 7)."""
    result: dict[Split, Samples] = {}
    met: set[str] = set()
    # The test first: what it holds is left out of the others, and what dev holds is left out of train.
    for split in ("test", "dev", "train"):
        if split in job.files:
            raw = job.input(split)
            rows = SplitRows(raw.parse(raw.json_items(), _parse))
            questions = set(map(_question_key, rows.rows))
            result[raw.split] = _finish(raw, rows, met)
            met |= questions
    return result


def _finish(raw: RawInput, rows: SplitRows[Draft], met: set[str]) -> Samples:
    leave_out_blank(rows)
    if raw.split != "test":
        rows.keep(
            "questions of the test" if raw.split == "dev" else "questions of the test and development files",
            "the question stands there too (letter case ignored)",
            [row for row in rows.rows if _question_key(row) not in met],
        )
    if raw.split == "train":
        rows.keep(
            "repeated questions",
            "the same question more than once would be trained on twice; the first is kept",
            first_of_each(rows.rows, _question_key),
        )
    return rows.become(raw.parse(rows.rows, raw.sample))


def _question_key(row: Draft) -> str:
    return " ".join(row.question.lower().split())


def _parse(row: Row) -> Draft:
    passages = [once(passage) for passage in row.texts("context") if passage]
    if not passages:
        raise row.error("context", "at least one passage")
    answers = dict.fromkeys(filter(None, row.texts("answers")))
    return Draft(
        number=row.number,
        relation="counterfactual",
        context=" ".join(dict.fromkeys(passages)),
        question=row.text("question"),
        answers=answers,
    )


def once(passage: str) -> str:
    """The passage with single blanks; some published ones are their own text twice, which is said once."""
    words = passage.split()
    half = len(words) // 2
    return " ".join(words[:half] if words[:half] == words[half:] else words)


IFQA = Source(
    name="ifqa",
    format="qa",
    licence="not stated by the publisher",
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
