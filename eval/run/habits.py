"""A model's habit for each row: what it answers without the context, how sure it is, and how the context relates.

A row is `aligned` if the model is sure of an accepted answer, `conflict` if it is sure of another one, and otherwise
`unknown`. Questions of other rows with their answers come first in the prompt: they show the form of an answer, which
small and base models otherwise miss. A free answer that is longer than all of the dataset's answers does not count.

Answers are kept in the cache by model, decoding and prompt, so no question is asked twice, whichever file its row is
in. An interrupted call resumes from its journal like an evaluation.
"""

import hashlib
import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from d2e_sft.data.built import TAG
from d2e_sft.data.prompts import Demonstrate, PromptSet, load_prompt_set
from d2e_sft.data.sample import EventSample, Subset
from d2e_sft.util.answers import answer_key, contains, is_same_answer, normalise
from d2e_sft.util.errors import UserError
from d2e_sft.util.paths import cache_dir
from eval.run.journal import PassFiles, fingerprint_of
from eval.run.options import EvalOptions, resolve_options
from eval.run.passes import EvaluatedModel, run_pass
from eval.run.processes import join_processes
from eval.run.task import Answer, SampleTask, sample_task
from eval.score.predictions import Prediction, refuse_edited
from eval.score.scoring import score_likelihoods, score_output

Confidence = Literal["probability", "agreement"]
_TEMPERATURE = 1.0  # for drawn answers
_DRAWN = 8
_LONGEST = 8  # words of an answer that is never too long
_RECORD = ".decoding.json"

Guesses = list[tuple[Prediction, float | None]]  # an answer and its confidence; None without a usable answer


@dataclass(frozen=True)
class TagRule:
    """When a model is sure of its answer.

    Attributes:
        confidence: `probability` of the greedy answer: the geometric mean of its tokens' probabilities; with options
            the share of the likeliest one, rescaled so that chance is 0. `agreement`: the share of `samples` drawn
            answers that are the most frequent one. None: probability, or agreement for an endpoint.
        threshold: Least confidence of a sure answer.
        samples: Drawn answers; None: 8. Only with agreement.
        shots: Most other rows in a prompt.
    """

    confidence: Confidence | None = None
    threshold: float = 0.5
    samples: int | None = None
    shots: int = 4


@dataclass(frozen=True)
class Habit:
    """A row's answer without the context; empty, and of no confidence, if the model gave none."""

    answers: list[str]
    confidence: float | None
    subset: Subset


def with_habits(samples: Sequence[EventSample], habits: Sequence[Habit], tag: Mapping[str, Any]) -> list[EventSample]:
    """Return the samples with their habits, and with `tag` and the confidence in their meta."""
    return [
        sample.model_copy(
            update={
                "subset": habit.subset,
                "habit": habit.answers,
                "meta": {**sample.meta, TAG: {**tag, "probability": habit.confidence}},
            }
        )
        for sample, habit in zip(samples, habits, strict=True)
    ]


def tagged_by_questions(
    rows: Sequence[EventSample], guesses: Sequence[tuple[str, float]], threshold: float
) -> tuple[list[EventSample], dict[str, Any]]:
    """Return the rows tagged with what their questions predict and how sure that is, and the tag."""
    habits, tag = list[Habit](), {"by": "questions", "threshold": threshold}
    for row, (guess, sure) in zip(rows, guesses, strict=True):
        right = any(is_same_answer(guess, answer) for answer in row.answers)
        habits.append(relate(row, [guess], sure, threshold, right=right) if guess else Habit([], None, "unknown"))
    return with_habits(rows, habits, tag), tag


class ClosedBook:
    """A model that is asked without contexts; of its options the engine, the wording and the length of answers matter.

    UserError if there is no such model or wording, options contradict each other, or the engine gives no
    probabilities.
    """

    def __init__(self, model: str, options: EvalOptions, rule: TagRule) -> None:
        config = resolve_options(model, replace(options, without_context=True))
        likely: Confidence = "agreement" if config.engine == "openai" else "probability"
        self.model, self.rule = model, replace(rule, confidence=rule.confidence or likely)
        self._draws = rule.samples or _DRAWN
        if rule.samples and self.rule.confidence == "probability":
            raise UserError(
                f"--samples {rule.samples} with --confidence probability: no answers are drawn; expected agreement",
                remedy="add --confidence agreement, or drop --samples",
            )
        if config.engine == "openai" and self.rule.confidence == "probability":
            raise UserError(
                "--confidence probability with --engine openai: an endpoint gives no probability of what it writes; "
                "expected agreement",
                remedy="drop --confidence, or ask the model here: --engine transformers or vllm",
            )
        self._wording = load_prompt_set(config.prompt_set, config.form)
        self._evaluated = EvaluatedModel(model, config, join_processes(config.engine))

    def describe(self) -> dict[str, Any]:
        settings = {"prompt_set": self._wording.name, "form": self._evaluated.config.form, "shots": self.rule.shots}
        return {"model": self.model, "identity": self._evaluated.identity, **self._measure, **settings}

    @property
    def _measure(self) -> dict[str, Any]:
        by_draws = self.rule.confidence == "agreement"
        name = f"agreement of {self._draws} samples" if by_draws else "probability"
        return {"confidence": name, "threshold": self.rule.threshold}

    def tagged(self, samples: Sequence[EventSample]) -> list[EventSample]:
        """Return the samples with the model's habit, how their context relates to it, and a tag in their meta."""
        return with_habits(samples, self.habits(samples), {"model": self.model, **self._measure})

    def habits(self, samples: Sequence[EventSample]) -> list[Habit]:
        """Return the habit for each sample."""
        wording = self._wording.in_setting("zero_shot")
        few = self._wording.in_setting("few_shot", _shown(samples, self.rule.shots)) if self.rule.shots else wording
        by = self._by_agreement if self.rule.confidence == "agreement" else self._by_probability
        longest: dict[str, int] = defaultdict(lambda: _LONGEST)
        for sample in samples:
            words = [len(answer.split()) for answer in sample.answers]
            longest[sample.dataset] = max(longest[sample.dataset], *words)
        by_place: dict[int, Habit] = {}
        for chats in (False, True):  # a conversation has a wording of its own, and shows no other rows
            places = [place for place, sample in enumerate(samples) if (sample.format == "chat") == chats]
            predicted = by([samples[place] for place in places], wording if chats else few)
            for place, (prediction, confidence) in zip(places, predicted, strict=True):
                most = longest[samples[place].dataset]
                by_place[place] = _habit(samples[place], prediction, confidence, self.rule.threshold, most)
        return [by_place[place] for place in range(len(samples))]

    def _ask(
        self, samples: Sequence[EventSample], wording: PromptSet, *, likelihood: bool = False, **draw: Any
    ) -> list[Answer]:
        """Return the answer to each sample, kept from earlier calls or decoded now.

        `likelihood` scores the candidates, or the accepted answers of a sample without any. `draw` are temperature and
        seed; without them decoding is greedy.
        """
        if not samples:
            return []
        evaluated, processes = self._evaluated, self._evaluated.processes
        decoding = replace(evaluated.config.decoding, **draw)
        options: Any = {"likelihood": likelihood, "without_context": True}
        task = sample_task(samples, wording, decoding, **options)
        digests = []
        for sample, chat in zip(samples, task.conversations, strict=True):
            responses = [wording.response(sample.model_copy(update={"answers": [text]})) for text in chat.options]
            digests.append(_digest([chat.imagined, *wording.stops, *([responses] if likelihood else [])]))
        folder = cache_dir() / "closed-book" / _digest(fingerprint_of(task, evaluated.identity, evaluated.config))[:16]
        kept = processes.broadcast_from_main(lambda: _kept_answers(folder))
        if processes.is_main and (before := sum(digest in kept for digest in digests)):
            print(f"asked before: {before:,} of {len(digests):,} questions", file=sys.stderr)
        missing = {digest: sample for digest, sample in zip(digests, samples, strict=True) if digest not in kept}
        if missing:
            names = list(missing)
            new = sample_task(list(missing.values()), wording, decoding, **options)
            facts = {"prompts": f"sha256 {_digest(names)}"}
            left = _ClosedBookTask(**{**vars(new), "name": self.model, "about": facts}, digests=names)
            finished = run_pass(left, PassFiles(folder, _digest(names)[:16]), evaluated)
            kept |= dict(zip(names, finished.answers, strict=True))
        return [kept[digest] for digest in digests]

    def _by_probability(self, samples: Sequence[EventSample], wording: PromptSet) -> Guesses:
        choices = iter(self._of_options([sample for sample in samples if sample.candidates], wording))
        texts = iter(self._of_texts([sample for sample in samples if not sample.candidates], wording))
        return [next(choices if sample.candidates else texts) for sample in samples]

    def _of_options(self, samples: Sequence[EventSample], wording: PromptSet) -> Guesses:
        """The likeliest option, and its share of the probability above chance."""
        predicted: Guesses = []
        for sample, answer in zip(samples, self._ask(samples, wording, likelihood=True), strict=True):
            scores, chance = answer.scores or [], 1 / len(sample.candidates)
            best = max(logprob for logprob, _ in scores)
            share = 1 / sum(math.exp(logprob - best) for logprob, _ in scores)
            confidence = (share - chance) / (1 - chance) if chance < 1 else 1.0
            predicted.append((score_likelihoods(sample, scores, wording, "none"), confidence))
        return predicted

    def _of_texts(self, samples: Sequence[EventSample], wording: PromptSet) -> Guesses:
        """The greedy answer, and the mean probability of its tokens."""
        outputs = self._ask(samples, wording)
        read = [_read(sample, answer.output, wording) for sample, answer in zip(samples, outputs, strict=True)]
        answered = [place for place, prediction in enumerate(read) if _key(prediction)]
        with_answers = [
            samples[place].model_copy(update={"answers": [" ".join(read[place].answer)]}) for place in answered
        ]
        predicted: Guesses = [(prediction, None) for prediction in read]
        for place, answer in zip(answered, self._ask(with_answers, wording, likelihood=True), strict=True):
            [(logprob, tokens)] = answer.scores or []
            predicted[place] = (read[place], math.exp(logprob / tokens))
        return predicted

    def _by_agreement(self, samples: Sequence[EventSample], wording: PromptSet) -> Guesses:
        """The most frequent answer among several draws, and its share."""
        draws = [self._ask(samples, wording, temperature=_TEMPERATURE, seed=seed) for seed in range(self._draws)]
        predicted: Guesses = []
        for place, sample in enumerate(samples):
            read = [_read(sample, draw[place].output, wording) for draw in draws]
            counts = Counter(key for prediction in read if (key := _key(prediction)))
            most, count = counts.most_common(1)[0] if counts else ("", 0)
            chosen = next(prediction for prediction in read if _key(prediction) == most)
            predicted.append((chosen, count / len(draws) if counts else None))
        return predicted


@dataclass(frozen=True, kw_only=True)
class _ClosedBookTask(SampleTask):
    """Prompts without contexts; the finished file has the key of each."""

    digests: Sequence[str]

    def line(self, answer: Answer) -> str:
        return json.dumps({"key": self.digests[answer.index], **answer.line()})


def _kept_answers(folder: Path) -> dict[str, Answer]:
    kept: dict[str, Answer] = {}
    for record in sorted(folder.glob(f"*{_RECORD}")):
        file = record.with_name(f"{record.name.removesuffix(_RECORD)}.jsonl")
        try:
            refuse_edited(file)
            lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        except (UserError, OSError) as error:
            raise UserError(f"{file}: kept answers are damaged ({error})", f"remove {folder} to ask again") from None
        kept |= {line.pop("key"): Answer(**line) for line in lines}
    return kept


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def closed_book(model: str, dtype: str | None = None) -> ClosedBook:
    return ClosedBook(model, EvalOptions(dtype=dtype), TagRule())


def _shown(samples: Sequence[EventSample], shots: int) -> Demonstrate:
    """The rows that a sample's prompt shows, without their contexts: of its dataset, relation and format.

    They are the training rows, if there are any, whose question has the smallest checksum. So more rows rarely change
    them, and prompts share their beginning.
    """
    groups: dict[tuple[str, str, str], list[EventSample]] = defaultdict(list)
    for sample in sorted(
        samples, key=lambda row: (row.split != "train", hashlib.sha256(row.question.encode()).digest())
    ):
        group = groups[sample.dataset, sample.relation, sample.format]
        if len(group) <= shots and sample.question not in [row.question for row in group]:
            group.append(sample.model_copy(update={"context": ""}))

    def of(sample: EventSample) -> Sequence[EventSample]:
        group = groups[sample.dataset, sample.relation, sample.format]
        return [row for row in group if row.question != sample.question][:shots]

    return of


def _read(sample: EventSample, output: str, wording: PromptSet) -> Prediction:
    marker, given = wording.marker(sample.format), wording.given(sample.format)
    prediction = score_output(sample, output, marker, given=given)
    if marker and normalise(marker) in normalise(" ".join(prediction.answer)):  # repeats itself without an answer
        return prediction.model_copy(update={"answer": []})
    return prediction


def _habit(
    sample: EventSample, prediction: Prediction, confidence: float | None, threshold: float, longest: int
) -> Habit:
    answers = [answer for answer in prediction.answer if answer.strip()]
    # Small models repeat themselves or the question, and are sure of each repeated word.
    too_long = sample.format == "qa" and len(" ".join(answers).split()) > longest
    if not answers or confidence is None or too_long:
        return Habit([], None, "unknown")
    right = prediction.right if prediction.acc is None else prediction.acc == 1
    return relate(sample, answers, confidence, threshold, right=right)


def relate(sample: EventSample, answers: list[str], confidence: float, threshold: float, *, right: bool) -> Habit:
    """Return an answer without the context as the sample's habit, with how the context relates to it."""
    rounded = round(confidence, 4)
    sure = rounded >= threshold
    answer, is_text = " ".join(answers), sample.format == "qa"
    if right or (is_text and any(contains(answer, gold) for gold in sample.answers)):
        if is_text and not any(is_same_answer(answer, g) or contains(answer, g, signs=True) for g in sample.answers):
            return Habit(answers, rounded, "unknown")  # `-5` for `5`: not the same, and exact match cannot tell
        # In the words of the row, so that the habit equals an accepted answer.
        return Habit(list(sample.answers), rounded, "aligned" if sure else "unknown")
    # A part of an accepted answer need not contradict it.
    part = not sample.candidates and any(contains(gold, answer) for gold in sample.answers)
    return Habit(answers, rounded, "conflict" if sure and not part else "unknown")


def _key(prediction: Prediction) -> str:
    """Equal for answers that count as one; empty without an answer."""
    key = str if prediction.options and prediction.parsed else answer_key
    return "" if prediction.ambiguous else "\n".join(sorted(filter(None, map(key, prediction.answer))))
