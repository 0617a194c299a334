"""Boxes as a benchmark: options and prompts; `d2e eval MODEL --bench boxes`, `d2e score boxes`."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from d2e_sft.data.chat_template import BEGUN, CUED, Form
from d2e_sft.data.sample import EventSample
from d2e_sft.util.encrypted_zip import PASSWORD
from d2e_sft.util.errors import UserError
from eval.run.task import TaskItem
from eval.systems.asking import Asker, ask_as_trained, conversation, user, wording
from eval.systems.benchmark import Benchmark, BenchmarkCall, BenchmarkOptions, BenchmarkResult
from eval.systems.boxes.answers import in_words_of_t5, read_all, read_one
from eval.systems.boxes.gold import (
    MASK,
    BoxQuestion,
    balanced,
    official_tsv,
    predictions_text,
    read_predictions,
    read_questions,
    states,
)
from eval.systems.boxes.scorer import measures, outcomes, plot, random_answers, score, tables

State = Sequence[BoxQuestion]
Answers = tuple[list[BoxQuestion], list[str | None]]  # the questions that are answered, and the texts
Prompt = Literal["all_boxes", "one_box", "trained", "masked"]
Demonstrations = Literal["plain", "alternate", "none"]
Split = Annotated[str, Field(description="beginning of the file's name in a folder or archive")]
Password = Annotated[str, Field(exclude=True, description="of an archive")]
_MAX_NEW_TOKENS: dict[Prompt, int] = {"all_boxes": 150, "one_box": 40, "trained": 40, "masked": 40}


class BoxesScoreOptions(BenchmarkOptions):
    split: Split = "test"
    password: Password = PASSWORD
    seed: int = Field(0, description="seed of the intervals and the random baseline")


class BoxesOptions(BenchmarkOptions):
    prompt: Prompt = Field(
        "all_boxes", description="all_boxes at once, one_box; trained: as d2e train; masked: as T5 is fine-tuned"
    )
    demonstrations: Demonstrations = Field(
        "plain", description="plain, alternate (in words the questions lack), or none: zero-shot"
    )
    states_per_numops: int | None = Field(
        None, ge=1, description="number of states for each number of operations on a box; 100 in the paper's subsample"
    )
    split: Split = "test"
    password: Password = PASSWORD

    @model_validator(mode="after")
    def _prompts_of_training_show_nothing(self) -> Self:
        if self.prompt in ("trained", "masked") and self.demonstrations != "plain":
            raise ValueError(f"prompt={self.prompt} is a prompt of training; leave demonstrations out")
        return self


class Boxes(Benchmark[Sequence[State], Answers]):
    """Questions about boxes; `max_samples` counts states."""

    name = "boxes"
    title = "Boxes (Kim & Schuster, ACL 2023)"
    official_files = "test.jsonl, or a zip archive of d2e data boxes or of the authors"
    obtain = "d2e data boxes data/raw/boxes/base.zip"
    options = BoxesOptions
    score_options = BoxesScoreOptions

    def prediction_files(self, options: Any) -> Sequence[str]:
        return ("answers_by_box.jsonl", "predictions.tsv")

    def read_gold(self, path: Path, options: Any) -> Sequence[State]:
        return states(read_questions(path, split=options.split, password=options.password))

    def ask(self, gold: Sequence[State], call: BenchmarkCall, asker: Asker) -> Answers:
        options: BoxesOptions = call.options
        count = options.states_per_numops
        offered = gold if count is None else balanced(gold, count, call.seed)
        chosen = [question for state in call.drawn(offered) for question in state]
        texts = ask_about(chosen, options, call.form, asker)
        return chosen, [
            in_words_of_t5(text) if text and question.form == "t5" and options.prompt != "masked" else text
            for text, question in zip(texts, chosen, strict=True)
        ]

    def read_predictions(self, path: Path, gold: Sequence[State], options: Any) -> Answers:
        return read_predictions(path, [question for state in gold for question in state])

    def evaluate(self, gold: Sequence[State], answers: Answers, options: Any, seed: int) -> BenchmarkResult:
        boxes = max(map(len, gold))
        rows = outcomes(*answers, random_answers(answers[0], seed))
        scores = score(rows, answers[1].count(None), boxes=boxes, seed=seed)
        files = {
            "answers_by_box.jsonl": predictions_text(*answers),
            "predictions.tsv": official_tsv(*answers),
            "accuracy.svg": plot(scores),
        }
        measured = measures(rows, answers[0], boxes=boxes)
        return BenchmarkResult(scores, tables(scores, sum(map(len, gold))), files, measures=measured)

    def template(self, gold: Sequence[State], options: Any) -> Iterator[dict[str, Any]]:
        return ({"line": q.line, "box": q.box, "prediction": ""} for state in gold for q in state)


def ask_about(questions: Sequence[BoxQuestion], options: BoxesOptions, form: Form, asker: Asker) -> list[str | None]:
    tokens = _MAX_NEW_TOKENS[options.prompt]
    if options.prompt == "trained":
        extracted = ask_as_trained(asker, list(map(as_sample, questions)), max_new_tokens=tokens)
        return [answer.answers[0] if answer.answers else None for answer in extracted]
    if options.prompt == "masked":
        replies = asker.ask("answers", list(map(as_masked, questions)), max_new_tokens=tokens, style=BEGUN)
        return [reply.removeprefix(MASK).strip() or None for reply in replies]
    cloze, whole = form == "completion", options.prompt == "all_boxes"
    groups = states(questions) if whole else [[question] for question in questions]
    chats = [prompt_about(group[0], options.demonstrations, form, whole=whole) for group in groups]
    replies = asker.ask("answers", chats, max_new_tokens=tokens, style=BEGUN if cloze else CUED)
    if not whole and not cloze:
        return [read_one(reply, question.box) for reply, question in zip(replies, questions, strict=True)]
    return [
        text
        for group, reply in zip(groups, replies, strict=True)
        for text in read_all(completed(group[0], reply) if cloze else reply, [question.box for question in group])
    ]


def prompt_about(
    question: BoxQuestion, demonstrations: Demonstrations, form: Form = "chat", *, whole: bool = False
) -> TaskItem:
    """Ask about a question's box or, with `whole`, about all boxes of its state."""
    solved: Any = wording("boxes/prompts").get(demonstrations)
    shown = []
    for example in solved["shown"] if solved else ():
        box, statement = "each box", example["statement"]
        if not whole:
            box = solved["boxes"][example["asked"]]
            statement = f"{box} contains {read_all(statement, [box])[0]}."
        shown.append((example["description"], box, statement))
    values: dict[str, Any] = {"form": form, "whole": whole, "shown": shown, "question": question}
    return conversation("boxes", f"line {question.line}", "boxes/prompts", **values)


def as_sample(question: BoxQuestion) -> EventSample:
    """Return the row that the generator writes for training."""
    return EventSample(
        id=f"line {question.line}",
        dataset="boxes",
        split="test",
        relation="temporal",
        format="qa",
        context=question.description,
        question=f"What does {question.box} contain?",
        answers=[question.answer],
    )


def as_masked(question: BoxQuestion) -> TaskItem:
    """Return the file's own sentence, whose mask the model fills in: how the paper fine-tunes and scores T5."""
    if question.form != "t5":
        raise UserError(
            f"prompt=masked: line {question.line} of the questions has 'contains' before its mask; expected the form "
            "for fine-tuning T5, in which the mask replaces the whole statement",
            "make such files: d2e data boxes OUT.zip --format t5",
        )
    original, imagined = ([user(text)] for text in (question.sentence_masked, f"{question.box} {MASK} ."))
    return TaskItem("boxes", f"line {question.line}", original, imagined)


def completed(question: BoxQuestion, reply: str) -> str:
    """Return the statement that a continuation completes, without further examples."""
    statement = re.split(r"\n\s*\n|Description:", reply)[0].strip()
    return f"{question.box} contains {statement}"


BOXES = Boxes()
