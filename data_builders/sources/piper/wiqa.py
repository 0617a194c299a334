"""WIQA (Tandon et al., EMNLP 2019): does a change in a process lead to more, to less or to no effect?

PIPER takes the 3,003 test rows as they are. Paragraphs (joined steps) of the test are not used for training.
"""

import re
from typing import Literal

from data_builders.raw.source import source
from data_builders.sources.reading import keep_unseen, reader
from data_builders.sources.rows import BadRowError, Draft, Form, RawObject, RawRow, Text, Texts, fingerprint

OPTIONS = {"more": "more", "less": "less", "no_effect": "no effect"}  # label → option
_STEM = re.compile(r"suppose (.+?) happens, how will it affect (.+?)\s*[.?]?\s*", re.IGNORECASE | re.DOTALL)


class _Question(RawObject):
    stem: Text
    para_steps: Texts
    answer_label: Literal["more", "less", "no_effect"]


class _Metadata(RawObject):
    para_id: Text
    graph_id: Text
    question_type: Literal["INPARA_EFFECT", "EXOGENOUS_EFFECT", "OUTOFPARA_DISTRACTOR"]
    path_len: int


class _Row(RawRow):
    question: _Question
    metadata: _Metadata


def _draft(row: _Row) -> Draft:
    steps = [step for step in row.question.para_steps if step]
    if not steps:
        raise BadRowError.at("question.para_steps", row.question.para_steps, "at least one step")
    chain = _STEM.fullmatch(row.question.stem)
    return row.draft(
        relation="counterfactual",
        # Most steps lack a full stop.
        context=" ".join(step if step.endswith((".", "!", "?")) else f"{step}." for step in steps),
        question=row.question.stem,
        options=list(OPTIONS.values()),
        answers=[OPTIONS[row.question.answer_label]],
        meta={**row.metadata.model_dump(), **({"chain": list(chain.groups())} if chain else {})},
    )


UNSEEN = keep_unseen(
    "paragraphs of the test",
    "the test has a paragraph with the same name or text",
    lambda row: row.meta["para_id"],
    lambda row: fingerprint(row.context),
)

WIQA = source(__file__, reader(Form(_Row, _draft), [UNSEEN]))
