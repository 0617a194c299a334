"""`d2e eval --answer likelihood` in this process: what is scored, what is kept, and what cannot be scored."""

from pathlib import Path
from typing import Any

import pytest
import torch

from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import EventSample
from d2e_sft.data.views import ViewEncoder
from d2e_sft.model.loading import load_model
from eval.run.engines import in_process
from tests.command import call, d2e, output_of
from tests.factories import bench_row, bench_rows, predictions, save_bench, scores_of, train_rows
from tests.tiny import save_tiny_model

FOLDER = "bench-likelihood"


def choice_row(number: int, **changes: Any) -> EventSample:
    options = ["rain", "a long, long drought", "snow" * (number % 3 + 1)]
    fields: dict[str, Any] = {"format": "scq", "options": options, "answers": [options[number % 3]]}
    return bench_row(number, **{**fields, **changes})


ROWS = [
    *(choice_row(number) for number in range(5)),
    choice_row(5, format="mcq", answers=["rain", "a long, long drought"]),
    choice_row(6, context=""),
    *(bench_row(number) for number in (7, 9, 11)),  # nli
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, and a benchmark of all formats that have options."""
    folder = tmp_path_factory.mktemp("world")
    save_tiny_model(folder / "model", seed=3)
    trains = [
        *train_rows(),
        *(choice_row(i, id=f"c{i}", split="train", context=f"Hail on day {i}.") for i in range(8)),
    ]
    save_bench(
        folder / "bench",
        ROWS,
        [*trains, *(row.model_copy(update={"format": "mcq", "id": f"m{row.id}"}) for row in trains[-8:])],
    )
    return folder


def evaluation(world: Path, run: Path, *more: Any) -> list[Any]:
    common = ("--bench", world / "bench", "--out", run, "--batch-size", 3, "--answer", "likelihood")
    return ["eval", world / "model", *common, *more]


def logprob(
    model: Any, original: list[int], imagined: list[int], option: list[int], given: int, alpha: float
) -> float:
    """By a forward of the whole text for each view."""
    logits = [
        model.requires_grad_(False)(torch.tensor([[*prompt, *option]])).logits[0, len(prompt) - 1 : -1].double()
        for prompt in (original, imagined)
    ]
    debiased = logits[0] - (alpha if original != imagined else 0) * logits[1]
    return float(debiased.log_softmax(-1)[range(given, len(option)), option[given:]].sum())


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_predictions_hold_each_options_log_probability(world: Path, tmp_path: Path, alpha: float) -> None:
    output_of(*evaluation(world, tmp_path, "--alpha", alpha))
    rows = predictions(tmp_path, FOLDER)
    assert [row["id"] for row in rows] == [sample.id for sample in ROWS]
    texts = [[option["option"] for option in row["likelihoods"]] for row in rows]
    assert texts == [list(sample.candidates) for sample in ROWS]
    scores = scores_of(tmp_path, FOLDER)
    assert (scores["answer"], scores["normalise"], scores["max_new_tokens"]) == ("likelihood", "none", None)
    assert scores["overall"]["acc"]["mean"] == sum(row["acc"] for row in rows) / len(rows)
    loaded = load_model(str(world / "model"))
    encoder = ViewEncoder(loaded.tokenizer, load_prompt_set("default"), ("original", "imagined"))
    for sample, row in zip(ROWS, rows, strict=True):
        original, imagined = (encoder.prompt_ids(sample, view) for view in encoder.views)
        options, given = encoder.option_ids(sample)
        expected = [logprob(loaded.model.eval(), original, imagined, option, given, alpha) for option in options]
        assert [option["logprob"] for option in row["likelihoods"]] == pytest.approx(expected, rel=1e-5, abs=1e-5)
        assert row["answer"] == [sample.candidates[expected.index(max(expected))]]
        assert [option["tokens"] for option in row["likelihoods"]] == [len(option) - given for option in options]


def test_the_normalising_length_is_chosen_afterwards(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output_of(*evaluation(world, tmp_path))
    by_sum = predictions(tmp_path, FOLDER)
    monkeypatch.setattr(in_process, "score", lambda *_, **__: pytest.fail("asked again"))
    again = call(*evaluation(world, tmp_path, "--normalise", "characters"))
    assert "decoded before, and only scored again" in again.err
    by_length = predictions(tmp_path, FOLDER)
    assert [row["likelihoods"] for row in by_length] == [row["likelihoods"] for row in by_sum]
    assert [row["answer"] for row in by_length] != [row["answer"] for row in by_sum]
    assert scores_of(tmp_path, FOLDER)["normalise"] == "characters"


def test_few_shot_other_passes_and_encoder_decoders_score_options_too(world: Path, tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "t5", "t5")
    assert d2e("eval", model, "--bench", world / "bench", "--answer", "likelihood", "--alpha", 0.5) == 0
    output_of(*evaluation(world, tmp_path, "--setting", "few_shot", "--alpha", 0.5))
    assert scores_of(tmp_path, "bench-few_shot-likelihood")["demonstrations"] is not None
    output_of(*evaluation(world, tmp_path, "--alpha", 0.5))
    output_of(*evaluation(world, tmp_path, "--alpha", 0.5, "--without-context"))
    unread = predictions(tmp_path, FOLDER, "without_context")
    assert [row["likelihoods"] for row in unread] != [row["likelihoods"] for row in predictions(tmp_path, FOLDER)]


def test_rows_of_free_text_and_several_correct_options_are_counted(world: Path, tmp_path: Path) -> None:
    several = choice_row(9, format="mcq", answers=["rain", "a long, long drought"])
    save_bench(tmp_path / "bench", [*bench_rows(8), several])  # half of the eight are qa
    common = ("--bench", tmp_path / "bench", "--out", tmp_path, "--answer", "likelihood")
    printed = call("eval", world / "model", *common)
    assert "warning: 4 of 9 rows ask for free text (qa) and are left out" in printed.err
    assert "warning: 1 of 5 samples have several correct options (mcq)" in printed.err
    assert "rows without options left out: 4" in printed.out
    assert "acc " in printed.out
    scores = scores_of(tmp_path, FOLDER)
    assert (scores["without_options"], scores["overall"]["n"], scores["subset"]) == (4, 5, None)
