"""CF World Facts (Goyal et al., "Context-Parametric Inversion", ICLR 2025): short passages against well-known facts.

Each passage contradicts a known fact; mostly it says that a capital was moved (313 rows). Most passages also contain
the known answer, so pointing at a name is not enough.
"""

import re

from data_builders.raw.source import source
from data_builders.sources.reading import reader
from data_builders.sources.rows import BadRowError, Draft, Form, RawInput, RawRow, Text

_REMARK = re.compile(r"\([^()]*\)")


class _Row(RawRow):
    context: Text
    question: Text
    answer: Text
    memory_answer: Text


def _draft(row: _Row) -> Draft:
    known = row.memory_answer
    # Alternatives are separated by semicolons, and remarks on them are in brackets.
    parts = (" ".join(_REMARK.sub(" ", part).split()) for part in known.split(";"))
    habit = list(dict.fromkeys(filter(None, parts)))
    if not habit:
        raise BadRowError.at("memory_answer", known, "an answer outside brackets")
    meta = {"memory_answer": known} if habit != [known] else {}
    return row.draft(relation="factual", answers=[row.answer], subset="conflict", habit=habit, meta=meta)


CPI_FACTS = source(__file__, reader(Form(_Row, _draft, RawInput.json_items)))
