"""`d2e eval --engine vllm` against a stand-in for vLLM that decodes with a tiny model of our own."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import eval.run.evaluate  # noqa: F401 - before a stand-in takes the place of d2e_sft.vllm
from d2e_sft.decoding import DecodingConfig, OptionScore, Output, PromptPair, finished, generate, score, stop_token_ids
from d2e_sft.model.loading import load_model
from tests.command import call, d2e, refusal_of
from tests.factories import bench_row, bench_rows, evaluate, evaluation, make_world, predictions, save_bench, scores_of


@dataclass
class Offline:
    """Stands in for `d2e_sft.vllm.offline`: the same interface, without vLLM."""

    loaded: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    dies_after: int | None = None

    def load_llm(self, model: str, **options: Any) -> Any:
        self.loaded.append((model, options))
        return load_model(model)

    def stop_ids_of(self, llm: Any, end_of_turn: int) -> list[int]:
        return stop_token_ids(llm.model, end_of_turn)

    def generate(
        self,
        llm: Any,
        pairs: Sequence[PromptPair[Any]],
        decoding: DecodingConfig,
        *,
        stop_ids: Sequence[int],
    ) -> Iterator[Output]:
        outputs = finished(generate(llm.model.eval(), llm.tokenizer, pairs, decoding, stop_ids=stop_ids))
        outputs[0].resubmissions = 4
        for count, output in enumerate(reversed(outputs)):  # answers come in any order
            if count == self.dies_after:
                raise RuntimeError("the engine is gone")
            yield output

    def score(self, llm: Any, pairs: Sequence[PromptPair[Any]]) -> Iterator[tuple[int, list[OptionScore]]]:
        return score(llm.model.eval(), pairs, DecodingConfig(alpha=0))


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> Offline:
    stand_in = Offline()
    vllm = ModuleType("vllm")
    vllm.__version__ = "0.0-test"  # type: ignore[attr-defined]
    for name, module in (("vllm", vllm), ("d2e_sft.vllm", ModuleType("d2e_sft.vllm"))):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "d2e_sft.vllm.offline", stand_in)  # type: ignore[arg-type]
    return stand_in


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [*bench_rows(20), bench_row(20, context="")]
    return make_world(tmp_path_factory.mktemp("world"), bench=rows, seed=3)


def outputs(run: Path) -> list[str]:
    return [row["output"] for row in predictions(run)]


@pytest.mark.parametrize("how", [("--alpha", 0), ("--alpha", 2, "--plausibility", 0.99)])
def test_vllm_is_given_the_prompts_of_the_other_engine(
    world: Path, tmp_path: Path, offline: Offline, how: tuple[str | float, ...]
) -> None:
    assert evaluate(world, tmp_path / "vllm", "--engine", "vllm", *how) == 0
    assert evaluate(world, tmp_path / "here", *how) == 0
    assert outputs(tmp_path / "vllm") == outputs(tmp_path / "here")
    scores = scores_of(tmp_path / "vllm")
    assert scores["engine"] == "vllm"
    assert scores["environment"]["vllm"] == "0.0-test"
    assert scores["engine_counts"] == {"resubmissions": 4}


def test_a_text_that_ends_an_answer_cuts_the_outputs_of_vllm_too(
    world: Path, tmp_path: Path, offline: Offline, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = [row["output"] for row in _completed(world, tmp_path / "whole", "--engine", "vllm")]
    middle = next(text[2] for text in said if len(text) > 4)
    monkeypatch.setattr("d2e_sft.data.prompts.PromptSet.stops", (middle,))
    cut = [row["output"] for row in _completed(world, tmp_path / "vllm", "--engine", "vllm")]
    assert cut == [text.partition(middle)[0] for text in said] != said
    assert cut == [row["output"] for row in _completed(world, tmp_path / "here")]


def _completed(world: Path, run: Path, *how: str) -> list[dict[str, Any]]:
    assert evaluate(world, run, "--form", "completion", "--alpha", 0.5, *how) == 0
    return predictions(run, "bench-completion")


def test_vllm_scores_options_as_the_other_engine(world: Path, tmp_path: Path, offline: Offline) -> None:
    rows = [bench_row(i) for i in range(1, 9, 2)]
    save_bench(tmp_path / "bench", rows)
    common = ("eval", world / "model", "--bench", tmp_path / "bench", "--answer", "likelihood")
    assert d2e(*common, "--engine", "vllm", "--out", tmp_path / "vllm") == 0
    assert d2e(*common, "--out", tmp_path / "here") == 0
    results = [tmp_path / name / "eval" / "bench-likelihood" / "predictions.jsonl" for name in ("vllm", "here")]
    assert results[0].read_text() == results[1].read_text()


def test_its_options_reach_it_and_the_recipes_dtype_does_not(world: Path, tmp_path: Path, offline: Offline) -> None:
    options = ("--tensor-parallel", 2, "--max-model-len", 900, "--gpu-memory-utilization", 0.5)
    assert evaluate(world, tmp_path, "--engine", "vllm", *options) == 0
    wanted = {"dtype": "auto", "tensor_parallel_size": 2, "max_model_len": 900, "gpu_memory_utilization": 0.5}
    assert offline.loaded == [(str(world / "model"), wanted)]


def test_the_length_that_it_was_given_is_the_limit(world: Path, tmp_path: Path, offline: Offline) -> None:
    error = refusal_of(*evaluation(world, tmp_path, "--engine", "vllm", "--max-model-len", 300))
    assert "exceed the model's context: prompts may have 294 tokens plus 6 new ones" in error
    assert not offline.loaded, "unsupported requests are refused before an engine starts"


def test_the_engine_makes_no_difference_to_what_is_kept(world: Path, tmp_path: Path, offline: Offline) -> None:
    offline.dies_after = 18
    with pytest.raises(RuntimeError, match="the engine is gone"):
        evaluate(world, tmp_path, "--engine", "vllm", "--alpha", 0.5)
    assert "resumed: 18 of 21" in call(*evaluation(world, tmp_path, "--alpha", 0.5)).err
    assert scores_of(tmp_path)["engine"] == "vllm, transformers"
