"""What a dry run says a command costs."""

from __future__ import annotations

import pytest

from eval.sweep.costs import cost_of, paid_judge, sum_of
from tests.command import output_of
from tests.eval.sweep.test_plan import PLAN, QWEN, plan


def test_a_build_that_asks_a_paid_judge_says_so_with_key_and_cost() -> None:
    build = ["data", "build", "--suite", "piper-10k", "--judge", "openai", "--judge-model", "gpt-4o"]
    said = str(paid_judge(plan(), build))
    for part in ("gpt-4o", "OPENAI_API_KEY", "USD"):
        assert part in said
    for other in (["--judge", "local"], ["--judge-url", "http://localhost"]):
        assert paid_judge(plan(), [*build, *other]) is None
    assert paid_judge(plan(), ["data", "build", "--suite", "piper"]) is None
    assert "OPENAI_API_KEY" in output_of("sweep", PLAN, "--dry-run", f"model={QWEN}", "sft")


def test_the_cost_of_a_training_is_six_operations_a_weight_and_token() -> None:
    found = plan()
    by_name = {point.name: point for point in found.points}
    sft, d2e = (cost_of(found, by_name[f"{name},llama-2-7b"], ["train"]) for name in ("sft", "d2e"))
    assert sft is not None
    assert d2e is not None
    assert sft.tokens == 3 * 10_000 * 236
    by_hand = 6 * 6.48e9 * sft.tokens / (8 * 312e12 * 0.031)  # LLaMA-2-7B without embeddings
    assert sft.seconds == pytest.approx(by_hand, rel=0.02)
    assert sft.seconds / 60 == pytest.approx(61, rel=0.05), "Table 8"
    assert d2e.seconds / 60 == pytest.approx(86, rel=0.06), "Table 8"
    assert sft.kept == pytest.approx(4 * 6.74e9, rel=0.01)
    assert sft.passing == pytest.approx(24 * 6.74e9, rel=0.01), "two checkpoints with Adam's moments"
    both = sum_of([sft, d2e])
    assert (both.tokens, both.kept, both.passing) == (sft.tokens + d2e.tokens, 2 * sft.kept, sft.passing)
    assert cost_of(found, by_name[f"base,{QWEN}"], ["data", "build"]) is None
