"""`d2e bench decode` on a tiny model: what it prints and writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from d2e_sft.cli import run
from d2e_sft.util.errors import UserError
from tests.tiny import save_tiny_model

KEYS = {"prompt", "batch", "new_tokens", "plain_ms", "debiased_ms", "guidance_ms", "debiased_to_plain", "debiased_to_guidance"}  # fmt: skip  # noqa: E501


def test_every_combination_is_a_row_and_the_debiased_tokens_are_those_of_guidance(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, target = save_tiny_model(tmp_path / "model", seed=1), tmp_path / "new" / "bench.json"
    run([
        "bench", "decode", "--model", str(model), "--prompts", "170,200", "--batches", "1,3", "--new-tokens", "2,7",
        "--repeats", "1", "--json", str(target),
    ])  # fmt: skip
    rows = json.loads(target.read_text("utf-8"))["rows"]
    assert [(row["prompt"], row["batch"], row["new_tokens"]) for row in rows] == [
        (prompt, batch, new) for prompt in (170, 200) for batch in (1, 3) for new in (2, 7)
    ]
    for row in rows:
        assert row.keys() >= KEYS
        assert row["same_tokens"] == 1
        assert row["debiased_to_plain"] == pytest.approx(row["debiased_ms"] / row["plain_ms"], rel=0.1)
    assert capsys.readouterr().out.count("100 % |") == len(rows)


def test_a_prompt_too_short_for_a_context_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--prompts 160: too short; expected more than 160 tokens"):
        run(["bench", "decode", "--model", str(tmp_path), "--prompts", "160"])
