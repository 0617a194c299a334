"""`d2e serve`: what it takes from a run's recipe, without a server."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from d2e_sft.commands.serve import serve
from d2e_sft.vllm import engine
from d2e_sft.vllm.server import serve as serving


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, serving.ServeOptions]]:
    """The servers that would have been started."""
    calls: list[tuple[str, serving.ServeOptions]] = []
    monkeypatch.setattr(engine, "require_vllm", lambda: None)
    monkeypatch.setattr(serving, "serve", lambda model, options: calls.append((model, options)))
    return calls


def _serve(*arguments: str) -> None:
    result = CliRunner().invoke(serve, arguments)
    assert result.exit_code == 0, result.output


def test_a_checkpoint_is_served_as_its_run_was_trained(
    tmp_path: Path, started: list[tuple[str, serving.ServeOptions]]
) -> None:
    recipe = "data: {train: rows.parquet, prompt_set: mine}\ntrain: {output_dir: x}\nd2e: {alpha: 0.3}\n"
    (tmp_path / "recipe.yaml").write_text(recipe)
    (tmp_path / "checkpoint-4").mkdir()
    for model in (tmp_path, tmp_path / "checkpoint-4"):
        _serve(str(model))
        assert (started[-1][1].decoding.alpha, started[-1][1].prompt_set) == (0.3, "mine")


def test_options_win_over_the_recipe_and_the_rest_goes_to_vllm(
    tmp_path: Path, started: list[tuple[str, serving.ServeOptions]]
) -> None:
    (tmp_path / "recipe.yaml").write_text("data: {train: r.parquet}\ntrain: {output_dir: x}\nd2e: {alpha: 0.3}\n")
    _serve("--alpha", "0", "--prompt-set", "other", str(tmp_path), "--max-model-len", "99")
    model, options = started[-1]
    assert (model, options.decoding.alpha, options.prompt_set) == (str(tmp_path), 0, "other")
    assert options.engine_arguments == ("--max-model-len", "99")


def test_a_model_without_a_recipe_is_served_at_one_half_or_with_the_decoder_given(
    started: list[tuple[str, serving.ServeOptions]],
) -> None:
    _serve("someone/a-model")
    assert (started[-1][1].decoding.alpha, started[-1][1].prompt_set) == (0.5, "default")
    _serve("--decoder", "adacad:floor=0.1", "someone/a-model")
    assert started[-1][1].decoding.decoder == "adacad:floor=0.1"
    refused = CliRunner().invoke(serve, ["--decoder", "mine:own", "someone/a-model"])
    assert "custom functions are not supported in vLLM" in str(refused.exception)
