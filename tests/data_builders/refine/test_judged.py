"""Who says what is relevant: a judge, who deletes words or chooses sentences, and scorers with an independent form."""

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from d2e_sft.data.sample import EventSample
from data_builders.refine.judged import Outcome, judge_refine, refine_prompts
from data_builders.refine.relevance import word_overlap
from data_builders.refine.rules import RefinerOptions, refine
from tests.judge_server import JudgeServer, MakeJudge
from tests.tiny import make_sample

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
    assert word_overlap(SENTENCES, QUERY) == pytest.approx([twice, 0, twice + once + twice, twice])
