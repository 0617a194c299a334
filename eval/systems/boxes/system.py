"""Boxes as a benchmark: `d2e eval MODEL --bench boxes`, `d2e score boxes`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.util.encrypted_zip import PASSWORD
from eval.score.extract import extract_answer
from eval.systems.asker import Asker
from eval.systems.boxes.answers import in_words_of_t5, read_all, read_one
from eval.systems.boxes.gold import Question, balanced, read_questions, states
from eval.systems.boxes.predictions import official_tsv, read_predictions, write_predictions
from eval.systems.boxes.prompts import Demonstrations, Form, Prompt, all_boxes, as_trained, completed, one_box
from eval.systems.boxes.scorer import measures, plot, random_answers, score, tables
from eval.systems.system import System, SystemCall, SystemOptions, SystemResult

State = Sequence[Question]
Answers = tuple[list[Question], list[str | None]]  # the questions that are answered, and the texts
_MAX_NEW_TOKENS: dict[Prompt, int] = {"all_boxes": 150, "one_box": 40, "trained": 40}


class BoxesScoreOptions(SystemOptions):
    """Options of the scorer."""

    split: str = Field("test", description="beginning of the file's name in a folder or archive")
    password: str = Field(PASSWORD, exclude=True, description="of an archive")
    seed: int = Field(0, description="seed of the intervals and the random baseline")


class BoxesOptions(SystemOptions):
    """Options of a run."""

    prompt: Prompt = Field("all_boxes", description="all_boxes at once, one_box, or trained: as d2e train")
    form: Form = Field("chat", description="chat, or cloze: a text to complete, for base models")
    demonstrations: Demonstrations = Field(
        "plain", description="plain, alternate (in words the questions lack), or none: zero-shot"
    )
    states_per_numops: int | None = Field(
        None, ge=1, description="number of states for each number of operations on a box; 100 in the paper's subsample"
    )
    split: str = Field("test", description="beginning of the file's name in a folder or archive")
    password: str = Field(PASSWORD, exclude=True, description="of an archive")

    @model_validator(mode="after")
    def _the_trained_prompt_is_one(self) -> Self:
        if self.prompt == "trained" and (self.form, self.demonstrations) != ("chat", "plain"):
            raise ValueError(
                "prompt=trained is d2e train's own prompt, without demonstrations; leave form and demonstrations out"
            )
        return self


class Boxes(System[Sequence[State], Answers]):
    """Questions about boxes; `max_samples` counts states."""

    name = "boxes"
    title = "Boxes (Kim & Schuster, ACL 2023)"
    official_files = "test.jsonl, or a zip archive of d2e data boxes or of the authors"
    obtain = "d2e data boxes data/raw/boxes/base.zip"
    options = BoxesOptions
    score_options = BoxesScoreOptions

    def gold_files(self, options: Any) -> Sequence[str]:
        return ()  # `read_questions` looks into folders and archives itself

    def prediction_files(self, options: Any) -> Sequence[str]:
        return ("answers_by_box.jsonl", "predictions.tsv")

    def read_gold(self, path: Path, options: Any) -> Sequence[State]:
        return states(read_questions(path, split=options.split, password=options.password))

    def ask(self, gold: Sequence[State], call: SystemCall, asker: Asker) -> Answers:
        options: BoxesOptions = call.options
        count = options.states_per_numops
        offered = gold if count is None else balanced(gold, count, call.seed)
        chosen = [question for state in call.drawn(offered) for question in state]
        texts = ask_about(chosen, options, asker)
        return chosen, [
            in_words_of_t5(text) if text and question.form == "t5" else text
            for text, question in zip(texts, chosen, strict=True)
        ]

    def read_predictions(self, path: Path, gold: Sequence[State], options: Any) -> Answers:
        return read_predictions(path, [question for state in gold for question in state])

    def evaluate(self, gold: Sequence[State], answers: Answers, options: Any, seed: int) -> SystemResult:
        boxes = max(map(len, gold))
        scores = score(*answers, random_answers(answers[0], seed), boxes=boxes, seed=seed)
        files = {
            "answers_by_box.jsonl": write_predictions(*answers),
            "predictions.tsv": official_tsv(*answers),
            "accuracy.svg": plot(scores),
        }
        return SystemResult(
            scores, tables(scores, sum(map(len, gold))), files, measures=measures(*answers, boxes=boxes)
        )

    def template(self, gold: Sequence[State], options: Any) -> Iterator[dict[str, Any]]:
        return ({"line": q.line, "box": q.box, "prediction": ""} for state in gold for q in state)


def ask_about(questions: Sequence[Question], options: BoxesOptions, asker: Asker) -> list[str | None]:
    """Return what the model says about each question's box."""
    tokens = _MAX_NEW_TOKENS[options.prompt]
    if options.prompt == "trained":
        prompts = load_prompt_set(asker.config.prompt_set)
        replies = asker.ask(
            "answers", [as_trained(question, prompts) for question in questions], max_new_tokens=tokens
        )
        found = (extract_answer(reply, fmt="qa", options=(), marker=prompts.marker("qa")).answers for reply in replies)
        return [answers[0] if answers else None for answers in found]
    cloze, shown = options.form == "cloze", (options.demonstrations, options.form)
    if options.prompt == "all_boxes":
        groups = states(questions)
        chats = [all_boxes(group, *shown) for group in groups]
    else:
        groups = [[question] for question in questions]
        chats = [one_box(question, *shown) for question in questions]
    replies = asker.ask("answers", chats, max_new_tokens=tokens, as_text=cloze)
    if options.prompt == "one_box" and not cloze:
        return [read_one(reply, question.box) for reply, question in zip(replies, questions, strict=True)]
    pairs = [
        (completed(group[0], reply) if cloze else reply, [question.box for question in group])
        for reply, group in zip(replies, groups, strict=True)
    ]
    return [text for reply, boxes in pairs for text in read_all(reply, boxes)]


BOXES = Boxes()
