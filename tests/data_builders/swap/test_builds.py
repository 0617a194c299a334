"""Builds with swaps: what is replaced and counted, the warnings, and answers that a model proposes."""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from d2e_sft.data.built import read_manifest
from d2e_sft.data.sample import EventSample, read_samples
from d2e_sft.judge.judge import JudgePrompt, Reply
from d2e_sft.judge.local import LocalBackend
from data_builders.build.options import BuildOptions
from data_builders.build.run import build
from data_builders.swap.candidates import Pool, SwapOptions, read_answers
from data_builders.swap.revise import Refusal
from data_builders.swap.swap import swap_samples
from data_builders.text.mentions import exchanged
from tests.command import output_of
from tests.data_builders.boxes.simulation import contents_by_text
from tests.data_builders.own_rows import usual, write
from tests.data_builders.reading import build_splits
from tests.tiny import make_sample

Built = dict[str, list[EventSample]]


@pytest.fixture(scope="module")
def habit(tmp_path_factory: pytest.TempPathFactory) -> tuple[Built, Built, Path]:
    """The habit task, its rows with half of the training swapped, and the folder of the latter."""
    settings = ["train_samples=200", "test_samples=20", "strength=0.95"]
    folder = tmp_path_factory.mktemp("habit")
    plain = build_splits(folder / "plain", "habit", *settings)
    return plain, build_splits(folder / "swapped", "habit", *settings, swap=0.5), folder / "swapped"


def test_swapped_rows_follow_from_the_text_and_can_be_restored(
    habit: tuple[Built, Built, Path],
) -> None:
    plain, swapped, folder = habit
    assert swapped["test"] == plain["test"]
    changed = 0
    for old, new in zip(plain["train"], swapped["train"], strict=True):
        moves = rf"[Tt]he {new.meta['thing']} (?:is in|to) the (\w+)\."
        for text in (new.context, new.refined_context or ""):
            assert re.findall(moves, text)[-1] == new.answers[0]
        if old != new:
            changed += 1
            assert (new.id, new.question, new.habit) == (f"{old.id}-swapped", old.question, old.habit)
            assert new.subset == "conflict"
            assert new.answers[0] not in (*old.answers, *old.habit)
            pair = new.meta["swapped"]
            assert pair == {"from": old.answers[0], "to": new.answers[0], "pool": "dataset"}
            back = {pair["to"]: pair["from"], pair["from"]: pair["to"]}
            assert exchanged(new.context, back) == old.context
            assert exchanged(new.refined_context or "", back) == old.refined_context
    assert (len(plain["train"]), changed) == (200, 100)
    entry = {"rows": 200, "wanted": 100, "swapped": 100, "pools": {"dataset": 100}, "refused": {}}
    manifest = read_manifest(folder)
    assert manifest["swap"] == {"share": 0.5, "datasets": {"habit": entry}}


def test_twins_and_the_pools_of_a_build_are_on_record(tmp_path: Path) -> None:
    settings = ["boxes.train_samples=5", "boxes.test_samples=40", "swap.pools=lists,dataset"]
    result = build(BuildOptions(["boxes"], tmp_path, swap_test=0.25, settings=settings))
    counts = result.manifest["swap-test"]["datasets"]["boxes"]
    assert (counts["rows"], counts["wanted"], counts["pools"]) == (40, 10, {"dataset": 10})
    assert sum(row.subset == "conflict" for row in read_samples(tmp_path / "test.parquet")) == 10
    assert result.manifest["options"]["swap"]["pools"] == "lists,dataset"


def test_a_habit_of_another_length_than_other_answers_gets_conflict_rows(tmp_path: Path) -> None:
    spec = "train: mine.csv\ntest: test.csv\nformat: qa\nrelation: none\n"
    # In the test rows, nothing but the habit is an answer; the others are those of the training rows.
    test = "context,question,answer\n" + "".join(
        f"Box {n} is kept in the workshop.,Where is box {n}?,the workshop\n" for n in range(25)
    )
    path = write(tmp_path, mine_csv=usual("the workshop", 40), test_csv=test, mine_yaml=spec)
    result = build(BuildOptions([str(path)], tmp_path / "out", swap=0.5, swap_test=1))
    assert result.warnings == []
    twins = [row for row in read_samples(tmp_path / "out" / "test.parquet") if row.subset == "conflict"]
    assert len(twins) == 25
    for twin in twins:
        [place] = twin.answers
        assert place in ("the cold store", "the paint room", "the loading dock")
        assert twin.context.endswith(f" is kept in {place}.")


def test_the_seed_decides_what_is_swapped(tmp_path: Path, habit: tuple[Built, Built, Path]) -> None:
    settings = ["train_samples=200", "test_samples=20", "strength=0.95", "seed=0"]
    assert build_splits(tmp_path / "again", "habit", *settings, swap=0.5) == habit[1]
    assert build_splits(tmp_path / "other", "habit", *settings, seed=1, swap=0.5)["train"] != habit[1]["train"]


def test_answers_of_swapped_boxes_follow_from_the_text(tmp_path: Path) -> None:
    settings = ["train_samples=150", "test_samples=5", "operations=4"]
    swapped = [row for row in build_splits(tmp_path, "boxes", *settings, swap=0.5)["train"] if "swapped" in row.meta]
    assert len(swapped) == 75
    for row in swapped:
        contents = set(re.findall(r"the (\w+)", row.answers[0]))
        assert contents_by_text(row.context, strict=True)[str(row.meta["box"])] == contents


def test_a_build_tags_natural_conflicts_and_says_which_habits_it_found(tmp_path: Path) -> None:
    places = ("the barn", "the attic", "the cold store")
    lines = [
        f"Crate {n} is kept in {place} by {'Ann' if n % 2 else 'Bob'}.,Where is crate {n}?,{place}"
        for n, place in ((n, "the workshop" if n % 5 else places[n // 5 % 3]) for n in range(200))
    ]
    rows = "\n".join(["context,question,answer", *lines, ""])
    spec = write(tmp_path, mine_csv=rows, mine_yaml="train: mine.csv\ntest: 0.2\nformat: qa\nrelation: none\n")
    printed, built = [], []
    for swap in ("0", "0.5"):
        out = tmp_path / f"out-{swap}"
        printed.append(output_of("data", "build", "--datasets", spec, "--out", out, "--swap", swap, "--swap-test", 1))
        built.append(read_samples(out / "test.parquet"))
    assert built[0] == built[1]  # swapping the training rows changes no habit
    assert "  expected guesses: 40 'the workshop'\n" in printed[0]
    assert len(built[0]) == 80
    for row, twin in zip(built[0][::2], built[0][1::2], strict=True):
        [said], [changed] = row.answers, twin.answers
        assert re.fullmatch(rf"Crate \d+ is kept in {said} by \w+\.", row.context)
        assert twin.context == row.context.replace(said, changed)
        assert row.subset == ("aligned" if said == "the workshop" else "conflict")
        assert (twin.subset, changed == "the workshop") == ("conflict", False)
        assert row.habit == twin.habit == ["the workshop"]
    counts = Counter(row.subset for row in built[0])
    assert f"subsets of mine test: {counts['aligned']} aligned, {counts['conflict']} conflict\n" in printed[0]
    manifest = read_manifest(tmp_path / "out-0")
    assert manifest["swap-test"]["datasets"]["mine"]["habits"] == {"the workshop": 40}
    assert "The `habit` of 40 of the 40 pairs" in (tmp_path / "out-0" / "README.md").read_text()


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


def test_only_rows_that_no_other_pool_serves_are_asked(
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
