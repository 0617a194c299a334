"""KRE-SQuAD (Ying et al., 2023): one question, four options, and two passages that give different answers.

The golden passage is SQuAD's and gives the true answer, which memory gives too: `aligned`. A language model rewrote it
to give one of the wrong options: `conflict`. The files are those that FaithfulRAG (Zhang et al., ACL 2025) packaged;
rows with the same number are the same question.
"""

from collections.abc import Collection, Iterator

from pydantic import Field

from d2e_sft.data.sample import Subset
from d2e_sft.util.answers import words
from data_builders.raw.source import source
from data_builders.sources.reading import Job, SplitRows, SplitSamples, apply_filters, keep_if, move_share, to_samples
from data_builders.sources.rows import BadRowError, Draft, Form, RawInput, RawRow, SourceOptions, Text, Texts


class KreSquadOptions(SourceOptions):
    """Options of KRE-SQuAD; `unclear` keeps rewritten passages that lack the answer, or keep the true one.

    `train_share` is the share of the golden passages whose aligned rows are the training split.
    """

    train_share: float = Field(0, ge=0, lt=1)
    unclear: bool = False


class KreSquadRow(RawRow):
    id: Text
    question: Text
    context: Text
    # Only the true option has no blank before it in the published files, so blanks would give it away.
    choices: Texts
    answer: Text


def _spaced(text: str) -> str:
    return " ".join(words(text))


def options_differ(options: Collection[str]) -> bool:
    """Whether the four options are different; in one question a model refused to write any."""
    return len(set(map(_spaced, options))) == 4


def _is_clear(draft: Draft) -> bool:
    """Whether a passage has its own answer, and not that of the golden one."""
    passage, (answer,), (habit,) = _spaced(draft.context or ""), draft.answers, draft.habit
    return _spaced(answer) in passage and _spaced(habit) not in passage


FOUR_OPTIONS = keep_if(
    "four different options",
    "if two options are equal, both or none would be right; here a model refused to write any",
    lambda pair: options_differ(pair[0].options),
    unit="questions",
)
CLEAR = keep_if(
    "rewritten passages that give their answer",
    "the passage lacks the answer word for word, or also keeps the true one (unclear=true keeps it)",
    lambda draft: draft.subset == "aligned" or _is_clear(draft),
)


def read(job: Job) -> SplitSamples:
    """Read the test: 1,768 aligned and, of as many, the 1,595 clear conflict rows; train with `train_share`."""
    options: KreSquadOptions = job.options
    golden, negative = job.input("golden", "test"), job.input("negative", "test")
    golden_rows = {row.number: row for row in Form(KreSquadRow, rows=RawInput.json_items).read(golden)}

    def pair(row: KreSquadRow) -> Iterator[tuple[Draft, Draft]]:
        golden_row = golden_rows.get(row.number)
        if golden_row is None or golden_row.id != row.id:
            raise BadRowError.at("id", row.id, f"that of item {row.number:,} of {golden.name}")
        yield _draft(golden_row, golden_row.answer, "aligned"), _draft(row, golden_row.answer, "conflict")

    pairs = SplitRows(Form(KreSquadRow, pair, RawInput.json_items).read(negative))
    rows = apply_filters(pairs, [FOUR_OPTIONS], "test")
    share, rng = options.train_share, job.random("train")
    drawn = move_share(rows, lambda pair: pair[0].context, share, rng, "passages", "questions")
    result: SplitSamples = {}
    if job.wants("train") and drawn:
        result["train"] = to_samples(job.input("golden", "train"), SplitRows([aligned for aligned, _ in drawn]))
    if job.wants("test"):
        drafts = rows.become([draft for pair in rows.rows for draft in pair])
        test = apply_filters(drafts, [] if options.unclear else [CLEAR], "test")
        files = {"aligned": job.input("golden", "test"), "conflict": job.input("negative", "test")}
        result["test"] = to_samples(lambda draft: files[str(draft.subset)], test)
    return result


def _draft(row: KreSquadRow, habit: str, subset: Subset) -> Draft:
    parts = {"id": f"{row.number}-{subset}", "options": row.choices, "answers": [row.answer], "habit": [habit]}
    return row.draft(relation="factual", subset=subset, meta={"squad_id": row.id}, **parts)


KRE_SQUAD = source(__file__, read, options=KreSquadOptions)
