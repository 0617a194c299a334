"""The refiner by likelihood on the device: scores of an answer with several contexts in one packed row."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.conftest import Machine


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scores_of_contexts_are_those_of_single_forwards_on_a_cpu(
    machine: Machine, tmp_path: Path, record_property: pytest.RecordProperty, dtype: str
) -> None:
    scorers = pytest.importorskip("data_builders.refine.likelihood")
    from tests.data_builders.refine.test_likelihood import CONTEXTS, MCQ, NLI, QA, SCQ, naive_score
    from tests.tiny import tiny_tokenizer

    model, tokenizer = machine.model("qwen3-0.6b", layers=2), tiny_tokenizer()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    scorer, errors = scorers.AnswerScorer(str(tmp_path), dtype), []
    model.cpu()
    for sample in (QA, SCQ, MCQ, NLI):
        expected = [naive_score(model, tokenizer, sample, context) for context in CONTEXTS]
        found = scorer.scores(sample, CONTEXTS)
        size = max(map(abs, expected))
        errors += [abs(one - other) / size for one, other in zip(found, expected, strict=True)]
        assert found[1] == pytest.approx(found[4], rel=1e-6), "equal contexts"
    record_property("largest_error", f"{max(errors):.1e}")
    assert max(errors) < (1e-3 if dtype == "float32" else 0.1)
