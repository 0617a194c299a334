"""WIQA's files: questions with their labels, types and paths, and predictions, one per line.

Our predictions are `{"ques_id": …, "answer": "more"}`. The lines of the official evaluator are read too: the predicted
label is `explanation.de`, and `orig_question` is the question (its own example says `orig_answer`).
"""

import re
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, AliasPath, BeforeValidator, Field, StrictInt, model_validator

from d2e_sft.util.errors import UserError
from eval.systems.labels import LabelQuestion
from eval.systems.reading import FlatRow, GoldRow, Text, read_lines

Label = Literal["more", "less", "no_effect"]
LABELS: tuple[Label, ...] = ("more", "less", "no_effect")
# +1: the cause brings the effect about (the paper's "correct"), -1: its opposite, 0: nothing.
POLARITY: dict[Label, int] = {"more": 1, "less": -1, "no_effect": 0}
OF_POLARITY: dict[int, Label] = {polarity: label for label, polarity in POLARITY.items()}
# What the official code takes for a label, underscores and letter case aside; A, B and C are the choices' letters.
_NAMES: dict[str, Label] = {
    **dict.fromkeys(("more", "+", "positive", "results in", "correct", "correct effect", "a"), "more"),
    **dict.fromkeys(
        ("less", "-", "not results in", "opposite", "opp", "results in opp", "opp effect", "opposite effect", "b"),
        "less",
    ),
    **dict.fromkeys(("no effect", "none", ".", "c"), "no_effect"),
}
TYPES = {"INPARA_EFFECT": "in-paragraph", "EXOGENOUS_EFFECT": "out-of-paragraph", "OUTOFPARA_DISTRACTOR": "no effect"}
_STEM = re.compile(r"suppose (.+?) happens, how will it affect (.+?)\s*[.?]?\s*", re.IGNORECASE | re.DOTALL)


def label_of(text: Any) -> Label | None:
    """Return the label that a text names; None if it names none."""
    return _NAMES.get(text.casefold().replace("_", " ").strip()) if isinstance(text, str) else None


NamedLabel = Annotated[Label | None, BeforeValidator(lambda value: label_of(value) or value)]


class Explanation(GoldRow):
    """The sentences i and j that carry an answer, and the direction `di` of the influence on sentence i."""

    di: Annotated[NamedLabel, BeforeValidator(lambda value: value or None)] = None
    i: StrictInt | None = None
    j: StrictInt | None = None


# None stands for one that holds only the answer, as `{"de": …}`.
MaybeExplanation = Annotated[
    Explanation | None,
    BeforeValidator(lambda v: v if isinstance(v, dict) and v.keys() & Explanation.model_fields.keys() else None),
]


class WiqaQuestion(LabelQuestion):
    """One question; some of its paragraph's sentences are blank.

    `nodes` counts those of the path in the influence graph; 0 without a path.
    """

    id: Text = Field(validation_alias=AliasPath("metadata", "ques_id"))
    stem: Text = Field(validation_alias=AliasPath("question", "stem"))
    paragraph_steps: list[str] = Field(validation_alias=AliasPath("question", "para_steps"), repr=False)
    answer: Label = Field(validation_alias=AliasPath("question", "answer_label"))
    type: Literal["INPARA_EFFECT", "EXOGENOUS_EFFECT", "OUTOFPARA_DISTRACTOR"] = Field(
        validation_alias=AliasPath("metadata", "question_type")
    )
    nodes: Annotated[StrictInt, Field(ge=0)] = Field(validation_alias=AliasPath("metadata", "path_len"))
    paragraph: Text = Field(validation_alias=AliasPath("metadata", "para_id"))
    graph: Text = Field(validation_alias=AliasPath("metadata", "graph_id"))
    explanation: MaybeExplanation = None

    @property
    def steps(self) -> list[str]:
        return [step.strip() for step in self.paragraph_steps if step.strip()]

    @property
    def hops(self) -> int:
        """Edges of the path in the influence graph."""
        return max(self.nodes - 1, 0)

    @cached_property
    def changes(self) -> tuple[str, str]:
        """The cause and the effect in the stem; two empty texts if the stem has another form."""
        ends = _STEM.fullmatch(self.stem.strip())
        return (ends[1].strip(), ends[2].strip()) if ends else ("", "")


def read_topics(path: Path) -> dict[str, str]:
    """Read `para_id.prompt.topic.partition.tsv`: paragraph → topic; UserError if the file is damaged."""
    rows = [row for _, row in read_lines(path, _Topic)]
    if not rows:
        raise UserError(f"{path}: holds no paragraph; expected WIQA's list of paragraphs and their topics")
    return {row.paragraph.removeprefix("propara_"): row.topic for row in rows}


class _Topic(FlatRow):
    paragraph: Text = Field(validation_alias="para_id")
    topic: Text


class WiqaLine(FlatRow):
    id: Text = Field(
        validation_alias=AliasChoices(
            "ques_id",
            "id",
            AliasPath("metadata", "ques_id"),
            AliasPath("orig_question", "metadata", "ques_id"),
            AliasPath("orig_answer", "metadata", "ques_id"),
        )
    )
    answer: NamedLabel = Field(validation_alias=AliasChoices("answer", AliasPath("explanation", "de"), "answer_label"))
    explanation: MaybeExplanation = None

    @model_validator(mode="before")
    @classmethod
    def _explanation_without_answer(cls, row: Any) -> Any:
        """Treat an explanation without `de` as an answer that could not be read, like the official script."""
        explanation = row.get("explanation") if isinstance(row, dict) else None
        return {**row, "explanation": {"de": None, **explanation}} if isinstance(explanation, dict) else row
