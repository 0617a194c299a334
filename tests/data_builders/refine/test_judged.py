"""A judge chooses sentences of the context in order; invalid choices go to the rule refiner."""

from __future__ import annotations

from collections import Counter

import pytest

from d2e_sft.data.sample import EventSample
from d2e_sft.util.errors import UserError
from data_builders.refine.judged import Outcome, judge_refine, refine_prompts
from data_builders.refine.rules import RefinerOptions, refine
from tests.judge_server import JudgeServer, MakeJudge, Misbehave
from tests.tiny import make_sample

STORY = "Rain fell. Dr. Li slept. The river rose. Roads were closed."


def story(number: int = 0, context: str = STORY, **changes: object) -> EventSample:
    return make_sample(number, context=context, refined_context=None, meta={"row": number}, **changes)


def by_rules(sample: EventSample) -> EventSample:
    return refine(sample, RefinerOptions(threshold=0.25, max_share=0.6))


def test_the_chosen_sentences_become_the_refined_context(server: JudgeServer, judge: MakeJudge) -> None:
    server.reply = lambda user: "One and three name the rain.\n\n**Sentences: 1, 3**"
    refined, counts = judge_refine([story()], judge(), by_rules)
    changes = {"refined_context": "Rain fell. The river rose.", "meta": {"row": 0, "refiner": "judge"}}
    assert refined == [story().model_copy(update=changes)]
    assert counts == Counter({Outcome.JUDGE: 1})


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        ("Sentences: 1, 5", Outcome.REJECTED_INVENTED),
        ("Sentences: 0, 1", Outcome.REJECTED_INVENTED),
        ("Sentences: 999999999", Outcome.REJECTED_INVENTED),
        ("Sentences: 3, 1", Outcome.REJECTED_REORDERED),
        ("Sentences: 1, 1, 3", Outcome.REJECTED_REORDERED),
        ("Sentences: none", Outcome.REJECTED_EMPTY),
        ("The river rose after rain fell.", Outcome.UNDECIDED),
        ("Sentences:", Outcome.UNDECIDED),
        ("Sentences: 1-3", Outcome.UNDECIDED),
        ("Sentences: 1, 2 and more", Outcome.UNDECIDED),
        ("Sentences: -1", Outcome.UNDECIDED),
        ("Sentences: 2\nThat is all.", Outcome.UNDECIDED),
    ],
)
def test_an_invalid_choice_goes_to_the_rules(
    server: JudgeServer, judge: MakeJudge, reply: str, outcome: Outcome
) -> None:
    server.reply = lambda user: reply
    [refined], counts = judge_refine([story()], judge(), by_rules)
    assert counts == Counter({outcome: 1})
    assert refined.refined_context == by_rules(story()).refined_context
    assert refined.meta == {"row": 0, "refiner": "rules"}


def test_each_sample_gets_its_own_choice(server: JudgeServer, judge: MakeJudge) -> None:
    kept, short = make_sample(3), story(2, context="Only one sentence.")
    samples = [story(1), short, kept, story(4), story(5, context=""), story(6)]
    server.reply = lambda user: "Sentences: " + {"1": "1", "4": "3, 4", "6": "4, 3"}[user.split(" days")[0][-1]]
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
    other = {Outcome.NOTHING_TO_CHOOSE: 2, Outcome.ALREADY_REFINED: 1, Outcome.REJECTED_REORDERED: 1}
    assert counts == Counter({Outcome.JUDGE: 2, **other})
    assert len(server.requests) == len(refine_prompts(samples)) == 3
    assert refined[2] == kept


def test_without_a_judge_the_rules_refine_everything() -> None:
    refined, counts = judge_refine([story(), make_sample(3)], None, by_rules)
    assert counts == Counter({Outcome.RULES_ONLY: 1, Outcome.ALREADY_REFINED: 1})
    assert refined[0].refined_context == by_rules(story()).refined_context
    assert refined[0].meta["refiner"] == "rules"


def test_a_prompt_numbers_the_sentences_and_shows_the_answer_except_for_nli() -> None:
    (qa,) = refine_prompts([story(answers=["the river", "a river"])])
    assert qa.user == (
        "[1] Rain fell.\n[2] Dr. Li slept.\n[3] The river rose.\n[4] Roads were closed.\n\n"
        "Question: What rose after 0 days?\nAnswer:\nthe river\na river"
    )
    (nli,) = refine_prompts([story(format="nli", question="Rain fell.", answers=["positive"])])
    assert nli.user.endswith("\n\nHypothesis: Rain fell.")
    assert "positive" not in nli.user + nli.system


def test_an_error_midway_loses_no_choice(server: JudgeServer, judge: MakeJudge) -> None:
    server.plan = [None, None, Misbehave(status=401, body=b"{}")]
    server.reply = lambda user: "Sentences: 1"
    samples = [story(number) for number in range(5)]
    with pytest.raises(UserError, match="2 of 5 replies are kept"):
        judge_refine(samples, judge(concurrency=1), by_rules)
    again = judge()
    judge_refine(samples, again, by_rules)
    assert (again.usage.cached, again.usage.asked) == (2, 3)
