"""IfQA (Yu et al., EMNLP 2023): what would follow if the world were not as the passage says?

PIPER uses the 700 test questions of the full split. Training questions that are also in the test or the development
file are left out. The few-shot split distributes the same questions differently and is never read.
"""

from data_builders.raw.source import source
from data_builders.sources.reading import NO_BLANK, keep_first, keep_unseen, reader
from data_builders.sources.rows import BadRowError, Cleaned, Draft, Form, RawInput, RawRow, Text


class _Row(RawRow):
    question: Text
    answers: list[Cleaned]
    context: list[Cleaned]


def _draft(row: _Row) -> Draft:
    passages = [once(passage) for passage in row.context if passage]
    if not passages:
        raise BadRowError.at("context", row.context, "at least one passage")
    context, answers = " ".join(dict.fromkeys(passages)), dict.fromkeys(filter(None, row.answers))
    return row.draft(relation="counterfactual", context=context, answers=answers)


def once(passage: str) -> str:
    """Return the passage with single blanks; if it is a text that is written twice, return that text once."""
    words = passage.split()
    half = len(words) // 2
    return " ".join(words[:half] if words[:half] == words[half:] else words)


def _question(row: Draft) -> str:
    return " ".join(row.question.lower().split())


_ASKED_THERE = "the question is there too (ignoring letter case)"
FILTERS = (
    NO_BLANK,
    keep_unseen("questions of the test", _ASKED_THERE, _question, splits=("dev",)),
    keep_unseen("questions of the test and development files", _ASKED_THERE, _question),
    keep_first("repeated questions", "a repeated question would be trained on twice; the first is kept", _question),
)

IFQA = source(__file__, reader(Form(_Row, _draft, RawInput.json_items), FILTERS))
