"""A model proposes other answers for rows that no other pool serves; what fits is checked, and replies are kept."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from d2e_sft.data.sample import EventSample
from d2e_sft.judge.judge import JudgePrompt, Reply
from d2e_sft.judge.local import LocalBackend
from data_builders.swap.candidates import Pool, SwapOptions, read_answers
from data_builders.swap.revise import Refusal
from data_builders.swap.swap import swap_samples
from tests.command import refusal_of
from tests.tiny import make_sample

ASKED = "Which dish did Ann cook?"
Replies = Callable[[str], list[JudgePrompt]]


def _row(number: int, dish: str, asked: str = ASKED) -> EventSample:
    context = f"Ann came home. She cooked {dish} for us."
    return make_sample(number, context=context, refined_context=None, question=asked, answers=[dish])


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[SwapOptions, Replies]:
    """Options that name a model, and a function that sets its replies and returns the prompts that it gets."""
    monkeypatch.setenv("D2E_CACHE", str(tmp_path / "cache"))
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}", encoding="utf-8")

    def replies(text: str) -> list[JudgePrompt]:
        asked: list[JudgePrompt] = []

        def answers(
            _: LocalBackend, prompts: Sequence[JudgePrompt], usage: object, keep: Callable[[JudgePrompt, Reply], None]
        ) -> Iterator[tuple[int, Reply]]:
            for index, prompt in enumerate(prompts):
                asked.append(prompt)
                keep(prompt, Reply(text=text))
                yield index, Reply(text=text)

        monkeypatch.setattr(LocalBackend, "answers", answers)
        return asked

    return SwapOptions(model=str(tmp_path / "model")), replies


def test_the_first_proposal_that_fits_is_taken_and_replies_are_kept(model: tuple[SwapOptions, Replies]) -> None:
    options, replies = model
    # Another form, the answer, in the context, in the question, and then one that fits.
    asked = replies("1. because it rained\n2. 'onion soup'\n- home\nAnn\nsoup onion\n* apple pie.\nplum cake")
    [new], swaps = swap_samples([_row(0, "onion soup")], 1.0, random.Random(0), options)
    assert new.context == "Ann came home. She cooked apple pie for us."
    assert new.meta["swapped"] == {"from": "onion soup", "to": "apple pie", "pool": "model"}
    assert (swaps.pools, +swaps.refused) == ({Pool.MODEL: 1}, {})
    [prompt] = asked
    assert all(text in prompt.user for text in ("She cooked onion soup for us.", ASKED, "Answer: onion soup"))
    assert "Ann came home" not in prompt.user
    again = replies("plum cake")
    assert swap_samples([_row(0, "onion soup")], 1.0, random.Random(0), options)[0] == [new]
    assert again == []


def test_only_rows_that_no_other_pool_serves_are_asked_and_no_more_than_needed(
    model: tuple[SwapOptions, Replies],
) -> None:
    options, replies = model
    asked = replies("apple pie")
    served = [_row(number, dish) for number, dish in enumerate(("rice", "fish"))]
    alone = [
        _row(number, "plain silk", f"Which {noun} did Ann cook?")
        for number, noun in enumerate(("hat", "bag", "coat", "ring", "cup"), 2)
    ]
    rows, swaps = swap_samples([*served, *alone], 3 / 7, random.Random(0), options)
    assert swaps.pools == {Pool.DATASET: 2, Pool.MODEL: 1}
    assert len(asked) == 2  # twice as many as are missing
    assert sum("swapped" in row.meta for row in rows) == 3


def test_a_reply_without_a_fitting_answer_leaves_the_reason(model: tuple[SwapOptions, Replies]) -> None:
    options, replies = model
    replies("I cannot say.")
    rows, swaps = swap_samples([_row(0, "onion soup")], 1.0, random.Random(0), options)
    assert rows == [_row(0, "onion soup")]
    assert swaps.describe()["refused"] == {Refusal.NO_OTHER.value: 1}


@pytest.mark.parametrize(
    ("reply", "answers"),
    [
        ("1. Oslo\n2) Lima\n(3) Bonn\n- Rome,\n* “Bern”.\n• Oslo", ["Oslo", "Lima", "Bonn", "Rome", "Bern"]),
        ("3.5 km\n1999", ["3.5 km", "1999"]),
        ("Oslo; Bonn; Oslo.", ["Oslo", "Bonn"]),
        (" \n", None),
    ],
)
def test_the_answers_of_a_reply(reply: str, answers: list[str] | None) -> None:
    assert read_answers(reply) == answers


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--swap-model", "nowhere/at/all"], "--swap-model without --swap"),
        (["--swap", "0.5", "--swap-model", "nowhere/at/all"], "nowhere/at/all"),
        (["--swap", "0.5", "--swap-pool", "model"], "swap.pools has model without one"),
        (["--swap", "0.5", "--swap-pool", "words"], "'options', 'lists', 'dataset' or 'model'"),
        (["--swap", "0.5", "--swap-pool", "lists", "--swap-model", "m"], "expected model among them"),
        (["--swap", "0.5", "swap.dtype=bfloat16"], "swap.dtype without --swap-model"),
    ],
)
def test_a_build_refuses_what_it_cannot_use_before_it_reads(arguments: list[str], words: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert words in refusal_of("data", "build", "--datasets", "habit", "--out", str(out), *arguments)
    assert not out.exists()
