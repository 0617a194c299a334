"""Boxes as a benchmark: `d2e eval MODEL --bench boxes`, `d2e score boxes`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from d2e_sft.data.prompts import SettingPrompts, load_prompt_set
from d2e_sft.util.encrypted_zip import PASSWORD
from eval.score.extract import extract_answer
from eval.systems.asker import Asker
from eval.systems.boxes.answers import in_words_of_t5, read_all, read_one
from eval.systems.boxes.gold import Question, balanced, read_questions, states
from eval.systems.boxes.predictions import official_tsv, read_predictions, write_predictions
from eval.systems.boxes.prompts import Demonstrations, Form, Prompt, all_boxes, as_trained, completed, one_box
from eval.systems.boxes.scorer import measures, plot, random_answers, score, tables
from eval.systems.system import System, SystemCall, SystemOptions, SystemResult

_MAX_NEW_TOKENS: dict[Prompt, int] = {"all_boxes": 150, "one_box": 40, "trained": 40}


class BoxesScoreOptions(SystemOptions):
    """Options of the scorer."""

    split: str = Field("test", description="of a folder or archive, the file whose name begins so")
    password: str = Field(PASSWORD, exclude=True, description="of an archive")
    seed: int = Field(0, description="of the intervals and the random baseline")


class BoxesOptions(SystemOptions):
    """Options of a run."""

    prompt: Prompt = Field("all_boxes", description="all_boxes at once, one_box, or trained: as d2e train")
    form: Form = Field("chat", description="chat, or cloze: a text to complete, for base models")
    demonstrations: Demonstrations = Field(
        "plain", description="plain, alternate (in words the questions lack), or none: zero-shot"
    )
    states_per_numops: int | None = Field(
        None, ge=1, description="so many states for each number of operations on a box; the paper's subsample: 100"
    )
    split: str = Field("test", description="of a folder or archive, the file whose name begins so")
    password: str = Field(PASSWORD, exclude=True, description="of an archive")

    @model_validator(mode="after")
    def _the_trained_prompt_is_one(self) -> Self:
        if self.prompt == "trained" and (self.form, self.demonstrations) != ("chat", "plain"):
            raise ValueError(
                "prompt=trained is d2e train's own prompt, without demonstrations; leave form and demonstrations out"
            )
        return self


def _run(call: SystemCall, asker: Asker) -> SystemResult:
    """Ask about every box of every state, which are what `max_samples` counts, and score what is said."""
    options: BoxesOptions = call.options
    everything = states(read_questions(call.data, split=options.split, password=options.password))
    count = options.states_per_numops
    offered = everything if count is None else balanced(everything, count, call.seed)
    chosen = [question for state in call.drawn(offered) for question in state]
    said = zip(_ask(chosen, options, asker), chosen, strict=True)
    texts = [in_words_of_t5(text) if text and question.form == "t5" else text for text, question in said]
    return _result(chosen, texts, everything, seed=call.seed)


def _score(predictions: Path, gold: Path, options: Any) -> SystemResult:
    """Score a file of predictions; those of some questions score these alone."""
    questions = read_questions(gold, split=options.split, password=options.password)
    chosen, texts = read_predictions(predictions, questions)
    return _result(chosen, texts, states(questions), seed=options.seed)


def _ask(questions: Sequence[Question], options: BoxesOptions, asker: Asker) -> list[str | None]:
    """What the model says of each question's box."""
    if options.prompt == "trained":
        return _ask_as_trained(questions, asker)
    cloze = options.form == "cloze"
    groups = states(questions) if options.prompt == "all_boxes" else [[question] for question in questions]
    chats = [
        all_boxes(group, options.demonstrations, options.form)
        if options.prompt == "all_boxes"
        else one_box(group[0], options.demonstrations, options.form)
        for group in groups
    ]
    replies = asker.ask("answers", chats, max_new_tokens=_MAX_NEW_TOKENS[options.prompt], as_text=cloze)
    if cloze:
        replies = [completed(group[0], reply) for reply, group in zip(replies, groups, strict=True)]
    elif options.prompt == "one_box":
        return [read_one(reply, question.box) for reply, question in zip(replies, questions, strict=True)]
    pairs = zip(replies, groups, strict=True)
    return [text for reply, group in pairs for text in read_all(reply, [question.box for question in group])]


def _ask_as_trained(questions: Sequence[Question], asker: Asker) -> list[str | None]:
    prompts = load_prompt_set(asker.config.prompt_set)
    marker = SettingPrompts(prompts).marker("qa")
    chats = [as_trained(question, prompts) for question in questions]
    replies = asker.ask("answers", chats, max_new_tokens=_MAX_NEW_TOKENS["trained"])
    found = (extract_answer(reply, fmt="qa", options=(), marker=marker).answers for reply in replies)
    return [answers[0] if answers else None for answers in found]


def _result(
    questions: Sequence[Question], predictions: Sequence[str | None], gold: Sequence[Sequence[Question]], *, seed: int
) -> SystemResult:
    """The scores of the questions that are predicted; `gold` are the states of the whole file."""
    boxes = max(map(len, gold))
    scores = score(questions, predictions, random_answers(questions, seed), boxes=boxes, seed=seed)
    files = {
        "answers_by_box.jsonl": write_predictions(questions, predictions),
        "predictions.tsv": official_tsv(questions, predictions),
        "accuracy.svg": plot(scores),
    }
    shown = tables(scores, sum(map(len, gold)))
    return SystemResult(scores, shown, files, measures=measures(questions, predictions, boxes=boxes))


def _template(gold: Path, options: Any) -> Iterator[dict[str, Any]]:
    """A line a question."""
    questions = read_questions(gold, split=options.split, password=options.password)
    return ({"line": question.line, "box": question.box, "prediction": ""} for question in questions)


BOXES = System(
    name="boxes",
    title="Boxes (Kim & Schuster, ACL 2023)",
    files="test.jsonl, or a zip archive of d2e data boxes or of the authors",
    obtain="d2e data boxes data/raw/boxes/base.zip",
    options=BoxesOptions,
    score_options=BoxesScoreOptions,
    run=_run,
    score=_score,
    prediction_files=lambda options: ("answers_by_box.jsonl", "predictions.tsv"),
    gold_files=None,  # `read_questions` looks into folders and archives itself
    template=_template,
)
