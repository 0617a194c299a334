"""A model decides by likelihood which spans stay; rows on which it does not use the context go to the rules."""

import math
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import ByT5Tokenizer

from d2e_sft.data.built import read_manifest
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import EventSample, read_samples
from data_builders.refine import likelihood
from data_builders.refine.likelihood import (
    AnswerScorer,
    Kept,
    LikelihoodOutcome,
    Limits,
    Score,
    SpannedContext,
    refine_by,
    remove_spans,
)
from data_builders.refine.rules import RefinerOptions, refine
from data_builders.text.clauses import Span
from data_builders.text.keeping import with_needed
from tests.command import output_of
from tests.tiny import CHAT_TEMPLATE, make_sample, save_tiny_model, tiny_model, tiny_t5_tokenizer, tiny_tokenizer

TEXT = "Rain fell for days, so the river rose. Roads were closed, which nobody liked. Anna, who was tired, slept."


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("D2E_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_tiny_model(tmp_path / "model", seed=2)  # some answers are likelier with the context, some are not


def rows(count: int = 8) -> list[EventSample]:
    """Questions on one text, whose answers are words of its own."""
    answers = ["the river", "nobody", "Anna", "rain", "roads", "days", "slept", "tired"]
    return [
        make_sample(i, context=TEXT, refined_context=None, question=f"Who or what? ({i})", answers=[answers[i % 8]])
        for i in range(count)
    ]


def by_likelihood(model: Path, **changes: float) -> RefinerOptions:
    return RefinerOptions.model_validate({"by": "likelihood", "model": str(model), **changes})


def test_each_context_is_what_the_scores_of_single_spans_say(model: Path) -> None:
    options = by_likelihood(model, margin=0, loss=0.5, least_share=0)
    done = make_sample(20)
    whole = make_sample(21, context="It rained.", refined_context=None)
    refined, counts = refine_by([*rows(), done, whole], options, ())
    assert counts.keys() == {*LikelihoodOutcome} - {LikelihoodOutcome.TOO_LONG}, (
        "the tiny model uses the context in some rows"
    )
    assert sum(counts.values()) == 10
    assert refined[8] == done
    assert refined[9].refined_context == "It rained."
    scorer = AnswerScorer(str(model))
    for before, after in zip(rows(), refined, strict=False):
        without, full, kept = scorer.scores(before, ["", TEXT, after.refined_context or ""])
        if full < without:
            assert after.meta["refiner"] == "rules"
            assert after.refined_context == refine(before, RefinerOptions()).refined_context
        else:
            assert after.meta["refiner"] == "likelihood"
            assert kept >= full - 0.5 - 1e-3
            assert before.answers[0].casefold() in str(after.refined_context).casefold()
            spelled = iter(TEXT.casefold().replace(",", " ").replace(".", " ").split())
            found = str(after.refined_context).casefold().replace(",", " ").replace(".", " ").split()
            assert all(word in spelled for word in found), "words of the context, in order"


def test_at_least_a_share_of_the_words_stays(model: Path) -> None:
    for share in (0.35, 0.9):
        refined, _ = refine_by(rows(), by_likelihood(model, margin=0, loss=1e6, least_share=share), ())
        decided = [row for row in refined if row.meta["refiner"] == "likelihood"]
        words = [len(str(row.refined_context).split()) for row in decided]
        assert words
        assert min(words) >= share * len(TEXT.split())
        assert min(words) < (share + 0.35) * len(TEXT.split())


def test_rows_decided_before_an_interruption_are_kept(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scored, asked = AnswerScorer.scores, list[str]()

    def breaks(scorer: AnswerScorer, sample: EventSample, contexts: list[str]) -> list[float]:
        asked.append(sample.id)
        if len(set(asked)) == 5:
            raise KeyboardInterrupt
        return scored(scorer, sample, contexts)

    options = by_likelihood(model, margin=0)
    with monkeypatch.context() as patch:
        patch.setattr(AnswerScorer, "scores", breaks)
        with pytest.raises(KeyboardInterrupt):
            refine_by(rows(), options, ())
    printed = capsys.readouterr().err
    assert "rows by the likelihood of" in printed
    assert "minutes (timed on 2 rows;" in printed
    assert "and the next run resumes there" in printed
    first = set(asked[:-1]) - {asked[-1]}
    asked.clear()
    with monkeypatch.context() as patch:
        patch.setattr(AnswerScorer, "scores", lambda *given: asked.append(given[1].id) or scored(*given))
        result = refine_by(rows(), options, ())
    assert set(asked) == {row.id for row in rows()} - first
    with monkeypatch.context() as patch:
        patch.setattr("d2e_sft.model.loading.load_model", lambda *_, **__: pytest.fail("loaded"))
        assert refine_by(rows(), options, ()) == result
    monkeypatch.setattr(AnswerScorer, "scores", lambda *given: asked.append("again") or scored(*given))
    refine_by(rows(1), by_likelihood(model, margin=0.1), ())
    assert asked[-1] == "again", "other limits are another question"


def test_a_context_longer_than_the_model_goes_to_the_rules(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "short", positions=300)
    _, counts = refine_by(rows(3), by_likelihood(model), ())
    assert counts == Counter({LikelihoodOutcome.TOO_LONG: 3})


def test_a_build_reports_how_many_rows_each_way_decided(unchanged_raw: Path, model: Path, tmp_path: Path) -> None:
    arguments = ["data", "build", "--datasets", "ester,cqa,ifqa", "--raw", unchanged_raw, "--out", tmp_path / "built"]
    arguments += ["--refine", "likelihood", "--refine-model", model, "refine.margin=0", "refine.loss=3"]
    estimate = output_of(*arguments, "--estimate")
    assert estimate.startswith("refine: ")
    assert not (tmp_path / "built").exists()
    printed = output_of(*arguments)
    [told] = [line for line in printed.splitlines() if line.startswith("refined train: ")]
    manifest = read_manifest(tmp_path / "built")
    train = read_samples(tmp_path / "built/train.parquet")
    ways = manifest["refining"]["train"]
    assert sum(ways.values()) == len(train)
    assert told == "refined train: " + ", ".join(f"{count:,} {way}" for way, count in ways.items())
    assert ways.get("likelihood", 0) == sum(row.meta["refiner"] == "likelihood" for row in train) > 0
    assert f" {ways['likelihood']} likelihood" in (tmp_path / "built/README.md").read_text()
    assert all("refiner" not in row.meta for row in read_samples(tmp_path / "built/test.parquet"))
    shown = output_of("data", "show", "ifqa", "--raw", unchanged_raw, "--rows", "2", "--split", "train",
                      "refine.by=likelihood", f"refine.model={model}")  # fmt: skip
    assert shown.count("refined   ") == 2


# Spans go as long as the score holds: hand-worked contexts, and what holds of any context.

LIMITS = Limits(margin=2, loss=1, least_share=0)


def context(sentences: Sequence[int], protected: Sequence[int] = (), **needs: tuple[int, ...]) -> SpannedContext:
    """Spans of two words each, by the number of their sentence; `s1=(0,)`: span 1 needs span 0."""
    spans = [Span(i, i + 1, one, "main", needs.get(f"s{i}", ())) for i, one in enumerate(sentences)]
    even = [2] * len(spans)
    return SpannedContext(spans=spans, words=even, relevance=[0.0] * len(spans), protected=list(protected))


def worth(*nats: float, without: float = -10) -> Score:
    """Each span adds its worth to the score without a context."""
    return lambda sets: [without + sum(nats[number] for number in kept) for kept in sets]


@pytest.mark.parametrize(
    ("given", "nats", "changes", "stays"),
    [
        (context([0, 0, 1, 2]), (9, 0.1, 0.1, 0.1), {}, {0}),
        (context([0, 1, 2]), (0.6, 0.6, 9), {}, {1, 2}),  # 0.6 + 0.6 is more than the loss
        (context([0, 1, 2]), (0.6, 0.6, 9), {"loss": 1.5}, {2}),
        (context([0, 1, 2]), (9, -5, 0.9), {}, {0}),  # a span that misleads
        (context([0, 0, 0]), (9, 0, 0), {"least_share": 0.5}, {0, 2}),  # of 6 words 3 must stay
        (context([0, 1, 2], protected=[1]), (9, 0, 0), {}, {0, 1}),
        (context([0, 0, 0], s1=(0,)), (0, 9, 0), {}, {0, 1}),  # what a span needs stays with it
        (context([0, 0, 0], s1=(0,)), (0, 0, 9), {}, {2}),
        (context([0, 1]), (1, 0.9), {}, None),  # the context is worth less than the margin
        (context([0, 1]), (1, 0.9), {"margin": 1.9}, {0}),
        (context([0, 1]), (0, 0), {"margin": 0}, {1}),  # never nothing
    ],
)
def test_superfluous_spans_go(
    given: SpannedContext, nats: tuple[float, ...], changes: dict[str, float], stays: set[int] | None
) -> None:
    assert remove_spans(given, worth(*nats), LIMITS.model_copy(update=changes)) == stays


def test_no_context_is_scored_twice_as_a_second_score_may_be_rounded_otherwise() -> None:
    seen = list[Kept]()

    def once(sets: Sequence[Kept]) -> list[float]:
        seen.extend(sets)
        return worth(9, 0, 0, 0.6, 0.6)(sets)

    assert remove_spans(context([0, 1, 1, 2, 2]), once, LIMITS.model_copy(update={"least_share": 0.7})) is not None
    assert len(seen) == len(set(seen))


def test_the_least_relevant_go_first_where_not_all_may() -> None:
    given = context([0, 1, 2, 3]).model_copy(update={"relevance": [0.0, 3.0, 1.0, 2.0]})
    kept = remove_spans(given, worth(9, 0, 0.3, 0.1), LIMITS.model_copy(update={"least_share": 0.5}))
    assert kept == {0, 1}


@pytest.mark.parametrize("seed", range(30))
def test_whatever_the_context_the_limits_hold_and_nothing_more_can_go(seed: int) -> None:
    generator = random.Random(seed)
    count = generator.randint(1, 9)
    sentences = sorted(generator.randrange(3) for _ in range(count))
    needs = {
        f"s{i}": (i - 1,) for i in range(1, count) if sentences[i] == sentences[i - 1] and generator.random() < 0.4
    }
    given = context(sentences, generator.sample(range(count), generator.randrange(min(count, 3))), **needs)
    given.words = [generator.randint(1, 9) for _ in range(count)]
    given.relevance = [generator.random() for _ in range(count)]
    nats = [generator.choice([-1, 0, 0.2, 0.6, 4]) for _ in range(count)]
    limits = Limits(margin=0, loss=0.5, least_share=generator.choice([0, 0.35, 0.8]))
    kept = remove_spans(given, worth(*nats), limits)
    if kept is None:
        assert sum(nats) < 0
        return
    least = limits.least_share * sum(given.words)
    assert kept == with_needed(given.spans, kept) >= with_needed(given.spans, given.protected)
    assert sum(given.words[number] for number in kept) >= least
    assert sum(nats[number] for number in kept) >= sum(nats) - 0.5
    for one in kept - with_needed(given.spans, given.protected):
        rest = {number for number in kept if one not in with_needed(given.spans, [number])}
        short = sum(given.words[number] for number in rest) < least or not rest
        protects = not rest >= with_needed(given.spans, given.protected)
        highest = sum(value for value in nats if value > 0)  # of any path
        assert short or protects or sum(nats[number] for number in rest) < highest - 0.5


RAIN = "Rain fell for days, so the river rose. Roads were closed, which nobody liked."
CONTEXTS = ["", RAIN, "Rain fell for days. Roads were closed.", "The river rose.", RAIN]
OPTIONS = ["the river", "the price", "nobody"]
QA = make_sample(0, context=RAIN, answers=["the river", "a river that rose"])
SCQ = make_sample(1, context=RAIN, format="scq", options=OPTIONS, answers=["the price"])
MCQ = make_sample(2, context=RAIN, format="mcq", options=OPTIONS, answers=["the river", "nobody"])
NLI = make_sample(3, context=RAIN, format="nli", answers=["negative"])


def naive_score(model: Any, tokenizer: Any, sample: EventSample, context: str) -> float:
    """The score in float64 from the texts of the prompt set, a forward for each response."""
    encodes, in_turns = model.config.is_encoder_decoder, bool(tokenizer.chat_template)
    wording = load_prompt_set("default", "chat" if encodes or in_turns else "completion")
    messages = wording.messages(sample, "original", context=context)
    text = "\n\n".join(turn["content"] for turn in messages)
    if in_turns:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    prompt = tokenizer(text, add_special_tokens=encodes)["input_ids"]
    marker = tokenizer(wording.marker(sample.format), add_special_tokens=False)["input_ids"]
    logprobs = {}
    for answer in sample.candidates or sample.answers:
        response = wording.response(sample.model_copy(update={"answers": [answer]}))
        target = tokenizer(response, add_special_tokens=False)["input_ids"]
        assert target[: len(marker)] == marker
        begin = 0 if encodes or in_turns else len(marker)  # a text to continue ends in the marker
        with torch.no_grad():
            if encodes:
                decoder = torch.tensor([[0, *target[:-1]]])
                logits = model(input_ids=torch.tensor([prompt]), decoder_input_ids=decoder).logits[0]
            else:
                logits = model(torch.tensor([[*prompt, *target[begin:]]])).logits[0, len(prompt) - 1 : -1]
        values = logits.double().log_softmax(-1)[torch.arange(len(target) - begin), torch.tensor(target[begin:])]
        logprobs[answer] = values[len(marker) - begin :].sum().item()
    right = [logprobs[answer] for answer in sample.answers]
    others = [math.exp(value) for answer, value in logprobs.items() if answer not in sample.answers]
    return sum(right) / len(right) - (math.log(sum(others)) if others else 0)


# Padded rows (mamba, t5) round differently; a margin of two large sums shows it.
@pytest.mark.parametrize(
    ("kind", "tolerance"), [("llama", 1e-5), ("gemma3", 1e-5), ("gpt2", 1e-5), ("mamba", 1e-4), ("t5", 1e-4)]
)
def test_packed_scores_equal_a_forward_for_each_context(
    kind: str, tolerance: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = AnswerScorer(str(save_tiny_model(tmp_path, kind)))
    tokenizer = tiny_t5_tokenizer() if kind == "t5" else tiny_tokenizer()
    for sample in (QA, SCQ, MCQ, NLI):
        expected = [naive_score(tiny_model(kind), tokenizer, sample, context) for context in CONTEXTS]
        assert scorer.scores(sample, CONTEXTS) == pytest.approx(expected, rel=tolerance)
    monkeypatch.setattr(likelihood, "_AT_ONCE", 1)
    assert scorer.scores(NLI, CONTEXTS) == pytest.approx(expected, rel=tolerance), "one context at a time"


@pytest.mark.parametrize("fast", [False, True])
def test_a_tokenizer_that_is_not_fast_and_a_base_model_give_the_same_scores(fast: bool, tmp_path: Path) -> None:
    save_tiny_model(tmp_path)
    for file in [*tmp_path.glob("*token*"), *tmp_path.glob("*.jinja")]:
        file.unlink()
    tokenizer = tiny_tokenizer() if fast else ByT5Tokenizer(extra_ids=0)
    tokenizer.chat_template = None if fast else CHAT_TEMPLATE
    tokenizer.save_pretrained(tmp_path)
    scorer = AnswerScorer(str(tmp_path))
    assert scorer.tokenizer.is_fast == fast
    for sample in (QA, SCQ):
        expected = [naive_score(tiny_model(), tokenizer, sample, context) for context in CONTEXTS]
        assert scorer.scores(sample, CONTEXTS) == pytest.approx(expected, rel=1e-5)
