"""WIQA as a benchmark; the imagined view has no paragraph, as in the paper's no-paragraph ablation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from d2e_sft.data.chat_template import Messages
from d2e_sft.data.sample import EventSample
from d2e_sft.util.table import Table
from eval.run.task import Conversation
from eval.systems.asker import Asker
from eval.systems.conversations import ask_as_trained, assistant, system, user, wording
from eval.systems.labelled import Answers, LabelOptions, LabelScoreOptions, LabelSystem, accuracy_of
from eval.systems.system import SystemCall, SystemResult
from eval.systems.wiqa import scorer
from eval.systems.wiqa.graphs import read_graphs
from eval.systems.wiqa.questions import LABELS, Label, PredictedLine, Question, label_of

_GRAPHS = "wiqa_influence_graphs.jsonl: questions then also meet in other texts of the same node"
_ANSWER = re.compile(r"\b(no[ _-]?effect|no change|not affect|more|less)\b", re.IGNORECASE)
_MARKER = re.compile(r"\b(answer:|effect is)", re.IGNORECASE)
_LETTER = re.compile(r"\(?([ABC])\)?\s*(?:[.:)]|$)")
# The system message, the form of a question, and the solved examples.
_WORDING: Any = wording("wiqa/prompts")
_TRAINED_TOKENS = 24
MOST_SHOTS = len(_WORDING["demonstrations"])


class WiqaOptions(LabelOptions):
    """Options of the benchmark."""

    prompt: Literal["own", "trained"] = Field("own", description="own, or trained: as `d2e train` words WIQA's rows")
    paragraph: Literal["yes", "no"] = Field(
        "yes",
        description="no leaves the question's paragraph out: the no-paragraph ablation, which is the imagined view",
    )
    shots: int = Field(MOST_SHOTS, ge=0, le=MOST_SHOTS, description=f"solved examples, up to {MOST_SHOTS}")
    graphs: Path | None = Field(None, description=_GRAPHS)
    scoring: ClassVar[frozenset[str]] = frozenset(("graphs",))

    @model_validator(mode="after")
    def _the_prompt_of_training_shows_nothing(self) -> Self:
        if self.prompt == "trained" and self.shots != MOST_SHOTS:
            raise ValueError("prompt=trained is the prompt of training, without solved examples; leave shots out")
        return self


class WiqaScoreOptions(LabelScoreOptions):
    """Options of the scorer."""

    graphs: Path | None = Field(None, description=_GRAPHS)


class Wiqa(LabelSystem[Question]):
    """Questions about influences."""

    name = "wiqa"
    title = "WIQA (Tandon et al., EMNLP 2019)"
    official_files = "test.jsonl of the release wiqa-dataset-v2-october-2019, github.com/allenai/wiqa-dataset"
    obtain = "d2e data download wiqa"
    options = WiqaOptions
    score_options = WiqaScoreOptions
    question = Question
    line = PredictedLine
    id_name = "ques_id"

    def about(self, options: Any) -> str:
        return super().about(options) + ", without the paragraph" * (options.paragraph == "no")

    def conversation(self, question: Question, options: Any) -> Conversation:
        """Ask a question after some solved ones; without its paragraph, the conversation is its imagined view."""
        opening: Messages = [system(_WORDING["system"])]
        for shown in _WORDING["demonstrations"][: options.shots]:
            opening += [_asked(shown["steps"], shown["stem"]), assistant(shown["answer"])]
        imagined = [*opening, _asked((), question.stem)]
        messages = [*opening, _asked(question.steps, question.stem)] if options.paragraph == "yes" else imagined
        return Conversation(self.name, question.id, messages, imagined, group=question.paragraph)

    def ask(self, gold: Sequence[Question], call: SystemCall, asker: Asker) -> Answers:
        options: WiqaOptions = call.options
        if options.prompt == "own":
            return super().ask(gold, call, asker)
        questions = call.drawn(gold)
        samples = [as_sample(question, paragraph=options.paragraph == "yes") for question in questions]
        found = ask_as_trained(asker, samples, group=lambda one: one.context, max_new_tokens=_TRAINED_TOKENS)
        pairs = zip(questions, found, strict=True)
        labels = {question.id: label_of(said.answers[0]) if said.parsed else None for question, said in pairs}
        return Answers(labels, self.about(options), {})

    def read_answer(self, reply: str, question: Any) -> Label | None:
        """Return the first effect in a reply, after "answer:" or "effect is" if it has one, or a choice's letter."""
        marker = _MARKER.search(reply)
        found = (marker and _ANSWER.search(reply, marker.end())) or _ANSWER.search(reply)
        if found:
            name = found[1].lower()
            return "no_effect" if name.startswith("no") else label_of(name)
        letter = _LETTER.match(reply.strip())
        return label_of(letter[1]) if letter else None

    def groups(self, asked: Sequence[Question]) -> Mapping[str, Sequence[Question]]:
        return scorer.by_type(asked)

    def scores(self, asked: Sequence[Question], answers: Answers, options: Any, seed: int) -> dict[str, Any]:
        graphs = read_graphs(options.graphs) if options.graphs else None
        common = super().scores(asked, answers, options, seed)
        by_hops: dict[int, list[bool]] = {}
        for one in asked:
            by_hops.setdefault(one.hops, []).append(answers.labels[one.id] == one.answer)
        return {
            **{name: common.pop(name) for name in ("accuracy", "accuracy_interval", "by_type")},
            "by_hops": {str(hops): accuracy_of(right) for hops, right in sorted(by_hops.items()) if hops},
            **common,
            "consistency": scorer.consistency(asked, answers.labels, graphs),
            "baselines": scorer.baselines(asked, seed),
        }

    def tables(self, scores: Mapping[str, Any], title: str, notes: Sequence[str]) -> list[Table]:
        return scorer.tables(scores, title, notes)

    def evaluate(self, gold: Sequence[Question], answers: Answers, options: Any, seed: int) -> SystemResult:
        result = super().evaluate(gold, answers, options, seed)
        explained = any(line.explanation for line in answers.lines.values())
        if not explained or not any(question.explanation for question in gold):
            return result
        found = scorer.score_explanations([question for question in gold if question.id in answers.labels], answers)
        scores, shown = {**result.scores, "explanations": found}, [*result.tables, scorer.explanation_table(found)]
        return replace(result, scores=scores, tables=shown)

    def template(self, gold: Sequence[Question], options: Any) -> Iterator[dict[str, Any]]:
        """Return one line per question, whose text is only there to be read."""
        return ({"ques_id": question.id, "question": question.stem, "answer": ""} for question in gold)


def as_sample(question: Question, *, paragraph: bool) -> EventSample:
    """Return the row that `d2e data build --datasets wiqa` makes of a question, with its HTML entities decoded."""
    steps = [unescape(step) for step in question.steps] if paragraph else []
    return EventSample(
        id=question.id,
        dataset="wiqa",
        split="test",
        relation="counterfactual",
        format="scq",
        context=" ".join(step if step.endswith((".", "!", "?")) else f"{step}." for step in steps),
        question=unescape(question.stem),
        options=[label.replace("_", " ") for label in LABELS],
        answers=[question.answer.replace("_", " ")],
    )


def _asked(steps: Sequence[str], stem: str) -> dict[str, str]:
    listed = "\n".join(f"{number}. {step}" for number, step in enumerate(steps, start=1))
    process = _WORDING["process"].format(steps=listed) + "\n" if steps else ""
    return user(process + _WORDING["question"].format(stem=stem))


WIQA = Wiqa()
