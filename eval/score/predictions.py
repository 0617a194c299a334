"""Prediction: one decoded and scored sample, with everything needed to read it without the benchmark.

Raw outputs are kept with the extracted answers, so another extractor can score a run again without decoding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from d2e_sft.data.sample import Format, Relation, Subset
from d2e_sft.util.answers import answer_key, contains, exact_match, look_alikes, normalise, scored_text
from d2e_sft.util.errors import UserError, describe_validation_error
from d2e_sft.util.files import read_json_as, replacing, sha256_of
from d2e_sft.util.option_match import option_called
from eval.score.extract import Mode

SampleKey = tuple[str, str]  # dataset, id: an id is unique within its dataset only
DIGEST = "predictions_sha256"  # checksum of a finished file, in its record `*.decoding.json`
_WRITTEN_WHERE_GIVEN = ("subset", "habit", "likelihoods", "acc", "acc_norm", "events", "ambiguous")


class ScoredOption(BaseModel):
    """An option (in nli a label) and how likely the model finds it.

    Attributes:
        logprob: Sum of its tokens' log-probabilities, in nats, without the response form before it.
        tokens: Number of these tokens.
        characters: Length of their text, which is the option with its letter.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    option: str
    logprob: float
    tokens: int = Field(ge=1)
    characters: int = Field(ge=1)


class EventScores(BaseModel):
    """Scores of an answer of several events, each in [0, 1].

    Attributes:
        token_f1: F1 of the bags of tokens of all named and all gold events; the paper's F1^T.
        event_f1: F1 of the recall of triggers in named events and the precision of named events with a trigger.
        hit_at_1: Whether the first named event holds a trigger.
        exact_match: Whether exactly the gold events are named, in any order.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    token_f1: float = Field(ge=0, le=1)
    event_f1: float = Field(ge=0, le=1)
    hit_at_1: float = Field(ge=0, le=1)
    exact_match: float = Field(ge=0, le=1)


RIGHT = "exact match; of chats: contains the answer"  # what counts as right by subset


class Prediction(BaseModel):
    """A model's answer to one sample, and its scores.

    Attributes:
        gold: The accepted answers (mcq: all correct options).
        output: The generated text, unchanged.
        answer: The extracted answers, in the order in which the model named them.
        ambiguous: True if there is no answer because the output could mean several options; otherwise None.
        set_accuracy: mcq only: 1 if exactly the correct options are named, in any order.
        likelihoods: The options in order, if they were scored; then `output` is the response with the chosen one.
        acc, acc_norm: Whether the option with the largest sum, or the largest sum per character, is correct.
        events: Scores of an answer of several events (ESTER).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    dataset: str
    relation: Relation
    format: Format
    context: str
    question: str
    options: list[str]
    gold: list[str]
    output: str
    answer: list[str]
    extraction: Mode
    ambiguous: bool | None = None
    exact_match: float = Field(ge=0, le=1)
    f1: float = Field(ge=0, le=1)
    set_accuracy: float | None = Field(default=None, ge=0, le=1)
    subset: Subset | None = None
    habit: list[str] = Field(default_factory=list)
    likelihoods: list[ScoredOption] | None = None
    acc: float | None = Field(default=None, ge=0, le=1)
    acc_norm: float | None = Field(default=None, ge=0, le=1)
    events: EventScores | None = None

    @property
    def parsed(self) -> bool:
        return self.extraction != "none"

    @property
    def mean(self) -> float:
        """The mean of exact match and F1, which the paper reports (PIPER, section 2.2)."""
        return (self.exact_match + self.f1) / 2

    @property
    def right(self) -> bool:
        """Whether the answer is the gold one: an exact match, for mcq of the sets; chats contain it as whole words."""
        if self.format == "chat":
            return self.gives(self.gold)
        return (self.exact_match if self.set_accuracy is None else self.set_accuracy) == 1

    def gives(self, answers: Sequence[str]) -> bool:
        """Whether the extracted answer is one of `answers`, compared like the format's exact match.

        This compares the label in nli, the set of options in mcq, an option in scq, normalised text in qa, and in chat
        normalised text that the output contains as whole words.
        """
        if not answers or not self.answer:
            return False
        if self.format == "chat":
            text = " ".join(self.answer)
            return any(contains(text, answer, form=scored_text) for answer in answers)
        if self.format == "qa":
            return exact_match(" ".join(self.answer), answers) == 1
        accepted = {option_called(text, self.options) or text for text in answers}
        return self.parsed and (set(self.answer) == accepted if self.format == "mcq" else self.answer[0] in accepted)

    def says_same(self, answers: Sequence[str]) -> bool:
        """Whether another answer to this sample is the same: its options or label, or its text with equal signs."""
        key = answer_key if self.format in ("qa", "chat") else str
        return set(map(key, self.answer)) == set(map(key, answers))

    def contains(self, answers: Sequence[str]) -> bool:
        """Whether the output contains one of `answers`, both normalised, as characters (Zhou et al. 2023).

        An option that is named by its letter counts. An output often mentions a label or an option without choosing
        it, so labels of nli, sets of options, and options that normalise to the same are compared as in `gives`.
        """
        if self.format in ("nli", "mcq") or look_alikes(self.options, normalise):
            return self.gives(answers)
        text = normalise("\n".join([self.output, *self.answer]))
        return any(key in text for answer in answers if (key := normalise(answer)))


def write_predictions(predictions: Iterable[Prediction], path: str | Path) -> None:
    """Write predictions as JSONL, one object per line; the file appears only when it is complete."""
    with replacing(Path(path)) as partial, partial.open("w", encoding="utf-8") as out:
        for prediction in predictions:
            out.write(prediction_line(prediction) + "\n")


def prediction_line(prediction: Prediction) -> str:
    """Return a prediction as a line of JSON, without fields that are empty."""
    left_out = {name for name in _WRITTEN_WHERE_GIVEN if getattr(prediction, name) in (None, [])}
    return prediction.model_dump_json(exclude=left_out)


def read_predictions(path: str | Path, *, foreign: bool = False) -> list[Prediction]:
    """Read predictions from JSONL, in file order; `foreign` as for `refuse_edited`.

    UserError, with file and line, if the file is missing, empty, damaged, or changed since `d2e eval` wrote it.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: no such file; expected predictions (.jsonl)", remedy="d2e eval RUN --bench BENCH")
    refuse_edited(path, foreign=foreign)
    predictions = []
    with path.open("rb") as source:
        for line, raw in enumerate(source, start=1):
            if not raw.strip():
                continue
            try:
                predictions.append(Prediction.model_validate_json(raw))
            except ValidationError as error:
                raise UserError(
                    f"{path}, line {line}: not a prediction ({describe_validation_error(error)})",
                    remedy="the file is damaged or was edited; score the run again with d2e eval",
                ) from None
    if not predictions:
        raise UserError(f"{path}: holds no prediction", remedy="score the run again with d2e eval")
    return predictions


def refuse_edited(path: Path, *, foreign: bool = False) -> None:
    """Compare a file of predictions with the checksum in its record; UserError if it was changed or has none.

    `foreign` ones may have been decoded elsewhere, and then have no record.
    """
    record = path.with_suffix(".decoding.json")
    if foreign and not record.is_file():
        return
    remedy = (
        "restore the file, decode again with d2e eval … --overwrite, or keep it with d2e eval … --accept-edited, "
        "which scores it again and records that"
    )
    content = read_json_as(dict[str, Any], record, "the record of a decoding", remedy)
    if DIGEST not in content:
        raise UserError(f"{record}: has no {DIGEST}, so {path.name} may have been edited", remedy)
    if content[DIGEST] is None:
        raise UserError(f"{path}: its scoring was interrupted", "repeat the same d2e eval, which decodes nothing")
    if content[DIGEST] != (digest := sha256_of(path)):
        raise UserError(
            f"{path}: was changed after it was written (its SHA-256 is {digest[:16]}…; {record.name} says "
            f"{str(content[DIGEST])[:16]}…)",
            remedy,
        )
