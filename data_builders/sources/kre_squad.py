"""KRE-SQuAD (Ying et al., 2023): one question, four options, and two passages that give different answers.

The golden passage is that of SQuAD and gives the true answer, which is also what memory gives: `aligned`. A language
model rewrote it so that it gives one of the wrong options: `conflict`. The files are those that FaithfulRAG (Zhang et
al., ACL 2025) packaged; a row of one is the same question as the row of that number in the other.

There is no training split. `train_share` makes one: the golden rows of a share of the passages, so that a model can be
trained on what agrees with the habit and tested on what does not; the other passages are the test.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from d2e_sft.data.sample import Split
from data_builders.raw.reader import Draft
from data_builders.raw.row import Row
from data_builders.raw.source import Input, Job, Samples, Source, SourceOptions, SplitRows, github
from data_builders.sources.rows import draw_share
from data_builders.text.texts import words

FAITHFUL_RAG = github("DeepLearnXMU/Faithful-RAG", "d3673c578d9a8e484ff77417199f66a8e97569ea", "datas")

GOLDEN = FAITHFUL_RAG.file(
    "squad_golden.json", "1138ce868a85828c5deb2ee099cd07aaddaf47b53c21d77a6ef2a66e7ca8c194", 2_795_642
)
NEGATIVE = FAITHFUL_RAG.file(
    "squad_negative.json", "14bb6bcf798715916d596fb7d9042e7154b866f957118d0ed6ba859f5e2cb808", 2_972_106
)
_OPTIONS = 4


class KreSquadOptions(SourceOptions):
    """Options of KRE-SQuAD.

    Attributes:
        train_share: share of the golden passages whose aligned rows are the training split.
        unclear: whether rewritten passages stay that lack the answer, or keep the true one.
    """

    train_share: float = Field(0, ge=0, lt=1)
    unclear: bool = False


@dataclass(frozen=True)
class _Pair:
    """A question with its golden and its rewritten passage."""

    golden: Draft
    negative: Draft

    @property
    def is_clear(self) -> bool:
        """Whether the rewritten passage holds its answer, and not that of the golden one."""
        passage, (answer,), (habit,) = words(self.negative.context or ""), self.negative.answers, self.negative.habit
        return words(answer) in passage and words(habit) not in passage


def read(job: Job) -> dict[Split, Samples]:
    """Build test: 1,768 aligned and, of as many, the 1,595 clear conflict rows; train with `train_share`."""
    options = job.options
    assert isinstance(options, KreSquadOptions)
    pairs = _pairs(job)
    drawn = draw_share((pair.golden.context for pair in pairs.rows), options.train_share, job.random("train"))
    result: dict[Split, Samples] = {}
    if job.wants("train") and drawn:
        raw = job.input("golden", "train")
        train = SplitRows([pair.golden for pair in pairs.rows if pair.golden.context in drawn])
        result["train"] = train.become(raw.parse(train.rows, raw.sample))
    if job.wants("test"):
        if drawn:
            pairs.keep(
                "passages of the training rows",
                "their aligned rows are trained on (train_share)",
                [pair for pair in pairs.rows if pair.golden.context not in drawn],
                "questions",
            )
        result["test"] = _test(job, pairs, unclear=options.unclear)
    return result


def _pairs(job: Job) -> SplitRows[_Pair]:
    golden, negative = job.input("golden", "test"), job.input("negative", "test")
    golden_rows = {row.number: row for row in golden.json_items()}

    def parse(row: Row) -> _Pair:
        other = golden_rows.get(row.number)
        if other is None or other.text("id") != row.text("id"):
            raise row.error("id", f"that of item {row.number:,} of {golden.name}")
        habit = other.text("answer")
        return _Pair(_draft(other, habit, conflict=False), _draft(row, habit, conflict=True))

    pairs = SplitRows(negative.parse(negative.json_items(), parse))
    pairs.keep(
        "four different options",
        "of two equal options both or none would be right; here a model refused to write any",
        [pair for pair in pairs.rows if len(set(map(words, pair.golden.options))) == _OPTIONS],
        "questions",
    )
    return pairs


def _draft(row: Row, habit: str, *, conflict: bool) -> Draft:
    # The true option alone has no blank before it in the published files, so blanks would give it away.
    options, answer = row.texts("choices"), row.text("answer")
    if answer not in options:
        raise row.error("answer", f"one of the choices {options}")
    return Draft(
        number=row.number,
        id=f"{row.number}-{'conflict' if conflict else 'aligned'}",
        relation="factual",
        context=row.text("context"),
        question=row.text("question"),
        options=options,
        answers=[answer],
        subset="conflict" if conflict else "aligned",
        habit=[habit],
        meta={"squad_id": row.text("id")},
    )


def _test(job: Job, pairs: SplitRows[_Pair], *, unclear: bool) -> Samples:
    golden, negative = job.input("golden", "test"), job.input("negative", "test")
    drafts = pairs.become([draft for pair in pairs.rows for draft in (pair.golden, pair.negative)])
    if not unclear:
        kept = {pair.negative.number for pair in pairs.rows if pair.is_clear}
        drafts.keep(
            "rewritten passages that give their answer",
            "the passage lacks the answer word for word, or keeps the true one as well (unclear=true keeps it)",
            [draft for draft in drafts.rows if draft.subset == "aligned" or draft.number in kept],
        )
    samples = [
        sample
        for draft in drafts.rows
        for raw in [negative if draft.subset == "conflict" else golden]
        for sample in raw.parse([draft], raw.sample)
    ]
    return drafts.become(samples)


KRE_SQUAD = Source(
    name="kre_squad",
    format="scq",
    licence="not stated by the publisher",
    homepage="https://github.com/DeepLearnXMU/Faithful-RAG",
    folder="conflict/kre-squad",
    inputs=(
        Input("golden", (GOLDEN,), ("train", "test")),
        Input("negative", (NEGATIVE,), ("train", "test")),
    ),
    read=read,
    options=KreSquadOptions,
    redistribution="the packagers state no licence (SQuAD itself is CC BY-SA 4.0)",
    notes={
        "count": "one question has no options, and 173 rewritten passages lack their answer or keep the true one",
        "habit": "the answer of the golden passage, in both rows of a question",
        "options": "blanks around them are removed: in the files only the true option has none before it. The true "
        "one is a span of SQuAD, the others a model's: they differ in style, so compare with a model that sees the "
        "options alone (the imagined view)",
        "train": "none is published; train_share draws golden passages, and the test then has the others",
    },
)
