"""Which rows a build takes: fixed ratios, none of a benchmark, and those that a judge over real HTTP lets pass."""

import json
import os
import random
import re
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.data.built import read_manifest
from d2e_sft.data.sample import EventSample, read_samples
from d2e_sft.util.errors import UserError
from data_builders.build.mixture import MixturePool, allot, draw
from data_builders.build.suites import PIPER_10K
from data_builders.dataset import SampleSet
from data_builders.quality.judged import JudgedVerdict
from data_builders.quality.overlap import exclude_overlap, find_overlap
from data_builders.text.sentences import split_sentences
from tests.command import call, output_of, refusal_of, start
from tests.judge_server import KEY, JudgeServer, Misbehave
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


STORY = "Omar plants a long row of trees early in the year. The rain comes down."


def test_the_instruction_set_is_kept_apart_from_the_benchmark(raw: Path, tmp_path: Path) -> None:
    row = f"event: Omar rests starts before The rain comes down story: {STORY}\tanswer: positive\n"
    for name in ("train", "test"):
        with (raw / f"tracie/iid/tracie_{name}.txt").open("a") as file:
            file.write(row)
    out, flags = tmp_path / "out", ["--allow-shortfall", "--size", 30]
    assert call("data", "build", "--suite", "piper-10k", *flags, "--raw", raw, "--out", out).status == 0
    assert not any(sample.context == STORY for sample in read_samples(out / "train.parquet"))
    manifest = read_manifest(out)
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


def _reply(user: str) -> str:
    """Keeps the first two sentences; finds every context supportive but the one about a clock."""
    if "Hypothesis:" in user and user.startswith("Omar"):
        return " ".join(split_sentences(user.split("\n", maxsplit=1)[0])[:2]) + "\nStatus: done"
    return f"I see.\nVerdict: {'unsupported' if 'four trees' in user else 'supported'}"


def _arguments(raw: Path, out: Path, url: str, *more: str) -> list[str]:
    return [
        *("build", "--datasets", "tracie", "--raw", str(raw), "--out", str(out)),
        *("--judge", "openai", "--judge-model", "m", "--judge-url", url, *more),
    ]


def _stories(raw: Path, count: int) -> None:
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
    rows = [
        f"event: Omar plants {word} trees starts before The rain comes down story: Omar plants {word} trees early. "
        "The rain comes down. Everyone goes home to dry.\tanswer: positive\n"
        for word in words[:count]
    ]
    (raw / "tracie/iid/tracie_train.txt").write_text("".join(rows))


def _train(out: Path) -> list[EventSample]:
    return read_samples(out / "train.parquet")


def test_one_model_filters_and_another_refines(raw: Path, tmp_path: Path, server: JudgeServer) -> None:
    _stories(raw, 6)
    server.reply = _reply
    more = ("--refine", "openai", "--refine-model", "other")
    asked = output_of("data", *_arguments(raw, tmp_path / "out", server.url, *more, "--estimate"))
    assert [line.split(":")[0] for line in asked.splitlines() if line[0] != " "] == ["quality", "refine"]
    assert not server.requests
    output_of("data", *_arguments(raw, tmp_path / "out", server.url, *more))
    assert [request["model"] for request in server.requests] == ["m"] * 6 + ["other"] * 5
    assert {sample.meta["refiner"] for sample in _train(tmp_path / "out")} == {"judge"}
    manifest = read_manifest(tmp_path / "out")
    assert (manifest["judge"]["model"], manifest["judge"]["jobs"]) == ("m", ["quality"])
    assert (manifest["refiner"]["model"], manifest["refiner"]["jobs"]) == ("other", ["refine"])
    card = (tmp_path / "out/README.md").read_text()
    assert "chosen by the language model other" in card
    assert "refine.by=openai refine.model=other" in card


def test_the_judge_refuses_and_refines_training_samples_alone(raw: Path, tmp_path: Path, server: JudgeServer) -> None:
    _stories(raw, 6)
    server.reply = _reply
    printed = output_of("data", *_arguments(raw, tmp_path / "out", server.url))
    samples = _train(tmp_path / "out")
    assert len(samples) == 5
    assert not any("four trees" in sample.context for sample in samples)
    for sample in samples:
        assert sample.refined_context == " ".join(split_sentences(sample.context)[:2])
        assert sample.meta["refiner"] == "judge"
    test = read_samples(tmp_path / "out" / "test.parquet")
    assert len(test) == 10
    assert not any("refiner" in sample.meta for sample in test)
    assert len(server.requests) == 6 + 5  # a verdict for each, a choice for each that stays
    assert "refined train: 5 judge" in printed
    manifest = read_manifest(tmp_path / "out")
    assert manifest["judge"]["model"] == "m"
    assert manifest["refining"] == {"train": {"judge": 5}}
    assert manifest["datasets"]["tracie"]["splits"]["train"]["filters"][-1]["rows_out"] == 5
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert call("data", *_arguments(raw, tmp_path / "again", server.url)).status == 0
    assert {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()} == before
    assert len(server.requests) == 11, "all replies are kept"
    assert KEY not in (tmp_path / "out" / "manifest.json").read_text()


def test_an_estimate_needs_no_key(raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    arguments = ["data", "build", "--datasets", "tracie", "--raw", raw, "--out", tmp_path / "out"]
    arguments += ["--judge", "openai", "--judge-model", "m"]
    assert "quality: " in output_of(*arguments, "--estimate")
    assert "OPENAI_API_KEY is not set" in refusal_of(*arguments)


def test_the_estimate_is_what_is_then_asked(raw: Path, tmp_path: Path, server: JudgeServer) -> None:
    _stories(raw, 6)
    server.reply = _reply
    flags = ["--judge-price", "2,10", "--estimate"]
    printed = output_of("data", *_arguments(raw, tmp_path / "out", server.url, *flags))
    assert re.search(r"quality: 6 requests \(0 replies already cached\), .* at most \$0\.\d+", printed)
    assert re.search(r"refine: 6 requests", printed)
    assert server.requests == []
    assert not (tmp_path / "out").exists()
    assert call("data", *_arguments(raw, tmp_path / "out", server.url)).status == 0
    again = call("data", *_arguments(raw, tmp_path / "out", server.url, *flags))
    assert "quality: 0 requests (6 replies already cached)" in again.out
    assert "refine: 1 requests (5 replies already cached)" in again.out  # the refused sample was never refined


def test_the_instruction_set_judges_no_more_than_it_draws(raw: Path, tmp_path: Path, server: JudgeServer) -> None:
    _stories(raw, 12)
    server.reply = _reply
    output_of(
        "data",
        *("build", "--suite", "piper-10k", "--size", "8", "--allow-shortfall", "--raw", str(raw)),
        *("--out", str(tmp_path / "out"), "--judge", "openai", "--judge-model", "m", "--judge-url", server.url),
        *("--judge-jobs", "quality"),
    )
    mixture = read_manifest(tmp_path / "out")["mixture"]["datasets"]
    assert len(server.requests) == sum(entry["judged"] for entry in mixture.values())
    tracie = mixture["tracie"]
    assert tracie["candidates"] == 12
    assert 0 < tracie["drawn"] == tracie["verdicts"]["supported"] < 11, "eleven are supported"


def test_a_killed_build_resumes_and_pays_for_nothing_twice(raw: Path, tmp_path: Path, server: JudgeServer) -> None:
    _stories(raw, 12)
    server.reply, server.delay = _reply, 0.15
    arguments = _arguments(raw, tmp_path / "out", server.url, "--judge-concurrency", "1")
    process, printed = start(tmp_path, arguments, None, dict(os.environ), verb="data")
    while len(server.requests) < 5:
        assert process.is_alive(), printed.read_text()
        time.sleep(0.01)
    process.kill()
    process.join()
    assert not (tmp_path / "out").exists()
    server.delay = 0
    before = len(server.requests)
    assert call("data", *arguments).status == 0
    assert len(_train(tmp_path / "out")) == 11
    # Only the request that was under way when the process died may be asked again.
    assert len(server.requests) <= 12 + 11 + 1
    assert len(set(server.users[before:]) & set(server.users[: before - 1])) == 0


DRAWN = ("--suite", "piper-10k", "--size", "400", "--allow-shortfall")


@pytest.mark.parametrize(
    ("more", "job"),
    [
        (("--judge-jobs", "quality"), "quality filter"),
        (("--judge-jobs", "refine"), "refine"),
        (DRAWN, "quality filter"),
    ],
)
def test_a_judge_without_usable_replies(
    raw: Path, tmp_path: Path, server: JudgeServer, more: tuple[str, ...], job: str
) -> None:
    _stories(raw, 12)
    server.reply = lambda user: "Who knows."
    arguments = _arguments(raw, tmp_path / "out", server.url, *more)
    if more is DRAWN:
        del arguments[1:3]  # --datasets
    message = refusal_of("data", *arguments)
    assert f"{job}: none of the replies of" in message
    assert re.search(r"about \d+ samples is usable, such as 'Who knows.'", " ".join(message.split()))
    assert re.search(r"\d+ undecided; ", message)  # what was paid for is reported
    assert not (tmp_path / "out").exists()


def test_a_failed_build_writes_nothing_and_reports_its_cost(raw: Path, tmp_path: Path, server: JudgeServer) -> None:
    _stories(raw, 4)
    server.reply = _reply
    server.plan = [None, None, Misbehave(status=403, body=b'{"error": {"message": "gone"}}')] + [None] * 9
    message = refusal_of("data", *_arguments(raw, tmp_path / "out", server.url, "--judge-concurrency", "1"))
    assert "answered 403: gone" in message
    assert "judge: 2 replies received" in message
    assert not (tmp_path / "out").exists()
