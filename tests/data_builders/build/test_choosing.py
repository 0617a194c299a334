"""Rows in fixed ratios, and rows of a benchmark, which are not trained on."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.data.sample import EventSample, read_samples
from d2e_sft.util.errors import UserError
from data_builders.build.mixture import MixturePool, allot, draw
from data_builders.build.suites import PIPER_10K
from data_builders.dataset.sample_sets import SampleSet
from data_builders.quality.judged import JudgedVerdict
from data_builders.quality.overlap import exclude_overlap, find_overlap
from tests.command import call, output_of
from tests.tiny import make_sample

RATIOS = {"a": 50.0, "b": 30.0, "c": 20.0}


def _samples(name: str, count: int) -> list[EventSample]:
    return [make_sample(number, id=f"{name}-{number}") for number in range(count)]


def _draw(
    counts: dict[str, int], size: int, *, allow_shortfall: bool = False, seed: int = 0
) -> tuple[list[EventSample], dict[str, Any]]:
    pools = {name: MixturePool(name, _samples(name, count)) for name, count in counts.items()}
    return draw(
        pools,
        RATIOS,
        size,
        lambda rows: [JudgedVerdict.SUPPORTED] * len(rows),
        seed=seed,
        allow_shortfall=allow_shortfall,
    )


def test_the_published_ratios_give_the_rows_of_ten_thousand() -> None:
    assert list(allot(10_000, PIPER_10K.ratios, {}).values()) == [
        85, 420, 508, 645, 700, 700, 1_280, 1_280, 1_751, 2_631,
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
def test_parts_sum_up_and_are_within_one_of_their_exact_share(seed: int) -> None:
    rng = random.Random(seed)
    ratios = {str(i): rng.uniform(0.1, 30) for i in range(rng.randint(1, 9))}
    size = rng.randint(1, 5_000)
    parts = allot(size, ratios, {})
    assert sum(parts.values()) == size
    for name, ratio in ratios.items():
        assert abs(parts[name] - size * ratio / sum(ratios.values())) < 1


@pytest.mark.parametrize("seed", range(5))
def test_what_a_limit_cuts_off_goes_to_the_others_in_proportion(seed: int) -> None:
    rng = random.Random(seed)
    ratios = {str(i): rng.uniform(1, 30) for i in range(6)}
    limits = {str(i): rng.randint(0, 400) for i in range(6) if rng.random() < 0.6}
    parts = allot(1_000, ratios, limits)
    assert all(parts[name] <= limit for name, limit in limits.items())
    free = [name for name in ratios if parts[name] < limits.get(name, 10**9)]
    assert sum(parts.values()) == (1_000 if free else sum(limits.values()))
    # By hand: all datasets below their limit get the same number of rows per unit of ratio.
    for one, other in pairwise(free):
        assert abs(parts[one] / ratios[one] - parts[other] / ratios[other]) < 1 / ratios[one] + 1 / ratios[other]


def test_a_shortfall_is_an_error_that_lists_every_short_dataset() -> None:
    with pytest.raises(UserError) as refused:
        _draw({"a": 90, "b": 10, "c": 0}, 100)
    message = str(refused.value)
    assert "2 of 3 datasets have too few" in message
    assert "b  wanted    30, found    10, short    20: 10 candidates after the filters" in message
    assert "c  wanted    20, found     0, short    20" in message
    assert "--allow-shortfall" in message


def test_an_allowed_shortfall_is_filled_from_the_others_and_recorded() -> None:
    # b gives 10 of its 30; the missing 20 go to a and c as 50 : 20, that is 14.3 and 5.7.
    _, described = _draw({"a": 90, "b": 10, "c": 90}, 100, allow_shortfall=True)
    assert {name: part["drawn"] for name, part in described["datasets"].items()} == {"a": 64, "b": 10, "c": 26}
    assert described["rescaled"]
    assert described["datasets"]["b"]["reason"].startswith("10 candidates")
    assert described["datasets"]["a"]["reason"] == "takes part of what others lack"


def test_the_order_is_seeded_and_mixes_the_datasets() -> None:
    counts = {"a": 90, "b": 90, "c": 90}
    _, described = _draw(counts, 100)
    assert {name: part["drawn"] for name, part in described["datasets"].items()} == {"a": 50, "b": 30, "c": 20}
    assert not described["rescaled"]
    orders = {seed: [sample.id for sample in _draw(counts, 60, seed=seed)[0]] for seed in (0, 1)}
    assert orders[0] == [sample.id for sample in _draw(counts, 60)[0]]
    assert orders[0] != orders[1]
    assert {name[0] for name in orders[0][:20]} == {"a", "b", "c"}


def test_the_judge_is_asked_about_no_more_samples_than_the_quota_needs() -> None:
    asked: list[str] = []

    def keep_half(samples: Sequence[EventSample]) -> list[JudgedVerdict]:
        asked.extend(sample.id for sample in samples)
        return [list(JudgedVerdict)[int(sample.id.split("-")[1]) % 4] for sample in samples]

    pool = MixturePool("a", _samples("a", 1_000))
    pool.fill(20, keep_half)
    assert len(pool.kept) == 20
    assert len(asked) == len(set(asked)) == pool.judged == 40  # of four, one is refused and one undecided


STORY = "Omar plants a long row of trees early in the year. The rain comes down."


def test_the_instruction_set_is_kept_apart_from_the_benchmark(raw: Path, tmp_path: Path) -> None:
    row = f"event: Omar rests starts before The rain comes down story: {STORY}\tanswer: positive\n"
    for name in ("train", "test"):
        with (raw / f"tracie/iid/tracie_{name}.txt").open("a") as file:
            file.write(row)
    out, flags = tmp_path / "out", ["--allow-shortfall", "--size", 30]
    assert call("data", "build", "--suite", "piper-10k", *flags, "--raw", raw, "--out", out).status == 0
    assert not any(sample.context == STORY for sample in read_samples(out / "train.parquet"))
    manifest = json.loads((out / "manifest.json").read_text())
    assert list(manifest["benchmark"]["kept_apart_from"]) == ["piper", "ood"]
    steps = {step["name"]: step for step in manifest["datasets"]["tracie"]["splits"]["train"]["filters"]}
    assert steps["overlap with the benchmark"]["rows_in"] - steps["overlap with the benchmark"]["rows_out"] == 1
    assert call("data", "build", "--suite", "piper", "--raw", raw, "--out", tmp_path / "piper").status == 0
    output_of("data", "check", out, "--against", tmp_path / "piper")


def test_test_rows_that_a_filter_leaves_out_are_kept_apart_too(raw: Path, tmp_path: Path) -> None:
    row = {
        "idx": "/wiki/Test#P1#0",
        "question": "Who led the old town of Elmham?",
        "context": "Nobody knows .",
        "targets": ["X Y"],
    }
    with (raw / "timeqa/test.hard.json").open("a") as file:
        file.write(json.dumps(row) + "\n")
    with (raw / "tempreason/train_l3.json").open("a") as file:
        fields = {"fact_context": "Bo was mayor.", "context": "ElmhamElmham is a town of Bo.", "id": "L3_Q77_P6_0"}
        file.write(json.dumps({"question": row["question"], "text_answers": {"text": ["Bo"]}, **fields}) + "\n")
    out, flags = tmp_path / "out", ["--allow-shortfall", "--size", 30]
    assert call("data", "build", "--suite", "piper-10k", *flags, "--raw", raw, "--out", out).status == 0
    questions = [sample.question for sample in read_samples(out / "train.parquet")]
    assert "Who was mayor before Jo Fir?" in questions
    assert row["question"] not in questions


@pytest.mark.parametrize("seed", range(10))
def test_no_part_of_what_was_left_overlaps(seed: int) -> None:
    """A question asked of many contexts is a template in the whole set, and may be none in a part of it."""
    rng = random.Random(seed)
    words = ["rain", "sun", "snow", "wind"]

    def samples(split: str, count: int) -> list[EventSample]:
        return [
            make_sample(
                context=f"It was a day of {rng.choice(words)} and of much {rng.choice(words)} here.",
                question=f"What did the long {rng.choice(words)} bring to them?",
            ).model_copy(update={"id": f"{split}-{number}", "split": split})
            for number in range(count)
        ]

    train, test = samples("train", 40), [SampleSet("test", samples("test", 3))]
    kept = exclude_overlap(train, test)
    assert 0 < len(kept) < len(train)
    for _ in range(5):
        assert find_overlap(rng.sample(kept, min(len(kept), 4)), test).exact == []
