"""KRE-SQuAD (Ying et al., 2023): one question, four options, and two passages that give different answers.

The golden passage is SQuAD's and gives the true answer, which memory gives too: `aligned`. A language model rewrote it
to give one of the wrong options: `conflict`. The files are those that FaithfulRAG (Zhang et al., ACL 2025) packaged;
rows with the same number are the same question.

There is no training split. `train_share` makes one from the golden rows of a share of the passages; the other passages
are the test. A model can then be trained on rows that agree with the habit and tested on rows that contradict it.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from d2e_sft.data.sample import Split, Subset
from data_builders.raw.reader import Draft
from data_builders.raw.row import BadRowError, Row
from data_builders.raw.source import Job, Samples, SourceOptions, SplitRows
from data_builders.sources.facts import source
from data_builders.sources.filters import move_share, to_samples
from data_builders.sources.rows import RawRow, Text, Texts, parse_row, read_models
from data_builders.text.stems import words


class KreSquadOptions(SourceOptions):
    """Options of KRE-SQuAD.

    Attributes:
        train_share: Share of the golden passages whose aligned rows are the training split.
        unclear: Keep rewritten passages that lack the answer, or keep the true one.
    """

    train_share: float = Field(0, ge=0, lt=1)
    unclear: bool = False


class _Row(RawRow):
    id: Text
    question: Text
    context: Text
    # Only the true option has no blank before it in the published files, so blanks would give it away.
    choices: Texts
    answer: Text


@dataclass(frozen=True)
class _Pair:
    """A question with its golden and its rewritten passage."""

    golden: Draft
    negative: Draft

    @property
    def is_clear(self) -> bool:
        """Whether the rewritten passage has its own answer, and not that of the golden one."""
        passage = _spaced_words(self.negative.context or "")
        (answer,), (habit,) = self.negative.answers, self.negative.habit
        return _spaced_words(answer) in passage and _spaced_words(habit) not in passage


def read(job: Job) -> dict[Split, Samples]:
    """Read the test: 1,768 aligned and, of as many, the 1,595 clear conflict rows; train with `train_share`."""
    options: KreSquadOptions = job.options
    pairs = _pairs(job)
    drawn = move_share(
        pairs, lambda pair: pair.golden.context, options.train_share, job.random("train"), "passages", "questions"
    )
    result: dict[Split, Samples] = {}
    if job.wants("train") and drawn:
        result["train"] = to_samples(job.input("golden", "train"), SplitRows([pair.golden for pair in drawn]))
    if job.wants("test"):
        result["test"] = _test(job, pairs, unclear=options.unclear)
    return result


def _pairs(job: Job) -> SplitRows[_Pair]:
    golden, negative = job.input("golden", "test"), job.input("negative", "test")
    golden_rows = {row.number: row for row in read_models(_Row, golden, golden.json_items())}

    def parse(raw: Row) -> _Pair:
        row = parse_row(_Row, raw)
        other = golden_rows.get(row.number)
        if other is None or other.id != row.id:
            raise BadRowError.at("id", row.id, f"that of item {row.number:,} of {golden.name}")
        return _Pair(_draft(other, other.answer, "aligned"), _draft(row, other.answer, "conflict"))

    pairs = SplitRows(negative.parse(negative.json_items(), parse))
    pairs.keep(
        "four different options",
        "if two options are equal, both or none would be right; here a model refused to write any",
        [pair for pair in pairs.rows if len(set(map(_spaced_words, pair.golden.options))) == 4],
        "questions",
    )
    return pairs


def _spaced_words(text: str) -> str:
    return " ".join(words(text))


def _draft(row: _Row, habit: str, subset: Subset) -> Draft:
    return Draft(
        number=row.number,
        id=f"{row.number}-{subset}",
        relation="factual",
        context=row.context,
        question=row.question,
        options=row.choices,
        answers=[row.answer],
        subset=subset,
        habit=[habit],
        meta={"squad_id": row.id},
    )


def _test(job: Job, pairs: SplitRows[_Pair], *, unclear: bool) -> Samples:
    drafts = pairs.become([draft for pair in pairs.rows for draft in (pair.golden, pair.negative)])
    if not unclear:
        kept = {pair.negative.number for pair in pairs.rows if pair.is_clear}
        drafts.keep(
            "rewritten passages that give their answer",
            "the passage lacks the answer word for word, or also keeps the true one (unclear=true keeps it)",
            [draft for draft in drafts.rows if draft.subset == "aligned" or draft.number in kept],
        )
    raws = {"aligned": job.input("golden", "test"), "conflict": job.input("negative", "test")}
    return to_samples(lambda draft: raws[str(draft.subset)], drafts)


KRE_SQUAD = source(__file__, read, options=KreSquadOptions)
