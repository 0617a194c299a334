"""What stands in a benchmark is not trained on."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from d2e_sft.data.sample import EventSample, read_samples
from data_builders.dataset.sample_sets import SampleSet
from data_builders.quality.overlap import exclude_overlap, find_overlap
from tests.command import call, output_of
from tests.tiny import make_sample

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


def test_a_benchmark_that_cannot_be_read_is_named(raw: Path, tmp_path: Path) -> None:
    (raw / "wiqa/test.jsonl").unlink()
    out, flags = tmp_path / "out", ["--allow-shortfall", "--size", 10]
    result = call("data", "build", "--suite", "piper-10k", *flags, "--raw", raw, "--out", out)
    assert "wiqa: training rows were not compared with its test (wiqa/test.jsonl" in result.err
    assert "wiqa" in json.loads((out / "manifest.json").read_text())["benchmark"]["not_read"]


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
