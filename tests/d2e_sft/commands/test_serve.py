"""`d2e serve`: what it takes from a run's recipe, without a server."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from d2e_sft.commands.serve import serve
from d2e_sft.server import start
from d2e_sft.server.start import ServeOptions
from d2e_sft.vllm import engine
from d2e_sft.vllm.server import serve as of_vllm
from tests.command import refusal_of
from tests.d2e_sft.hub.runs import make_run, write_data_record

Started = list[tuple[str, ServeOptions]]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """The servers that would have been started."""
    calls: Started = []
    monkeypatch.setattr(engine, "require_vllm", lambda: None)
    for module in (of_vllm, start):
        monkeypatch.setattr(module, "serve", lambda model, options: calls.append((model, options)))
    return calls


def _serve(*arguments: str) -> None:
    result = CliRunner().invoke(serve, arguments)
    assert result.exit_code == 0, result.exception


@pytest.mark.parametrize("engine", ["vllm", "transformers"])
def test_a_checkpoint_is_served_as_its_run_was_trained(tmp_path: Path, started: Started, engine: str) -> None:
    recipe = "data: {train: rows.parquet, prompt_set: mine}\ntrain: {output_dir: x}\nd2e: {alpha: 0.3}\n"
    (tmp_path / "recipe.yaml").write_text(recipe)
    (tmp_path / "checkpoint-4").mkdir()
    for folder in (tmp_path, tmp_path / "checkpoint-4"):
        (folder / "config.json").write_text("{}")
    for model in (tmp_path, tmp_path / "checkpoint-4"):
        _serve("--engine", engine, *(("--max-new-tokens", "9") if engine == "transformers" else ()), str(model))
        assert started[-1][1].max_new_tokens == (9 if engine == "transformers" else 1024)
        assert (started[-1][1].decoding.alpha, started[-1][1].prompt_set) == (0.3, "mine")
        assert started[-1][1].is_worded


@pytest.mark.parametrize(("wording", "asked"), [("neutral", ("neutral", True)), ("the rows' own", ("default", False))])
def test_the_example_is_worded_as_the_rows_were(
    tmp_path: Path, started: Started, wording: str, asked: tuple[str, bool]
) -> None:
    run = make_run(tmp_path)
    write_data_record(run, wording)
    _serve("--engine", "transformers", str(run))
    assert (started[-1][1].prompt_set, started[-1][1].is_worded) == asked


def test_options_win_over_the_recipe_and_the_rest_goes_to_vllm(tmp_path: Path, started: Started) -> None:
    (tmp_path / "recipe.yaml").write_text("data: {train: r.parquet}\ntrain: {output_dir: x}\nd2e: {alpha: 0.3}\n")
    pages = ("--allow-origin", "https://App.example", "--allow-host", "d2e.example", "--allow-host", "d2e")
    _serve("--engine", "vllm", "--alpha", "0", "--prompt-set", "other", *pages, str(tmp_path), "--max-model-len", "99")
    model, options = started[-1]
    assert (model, options.decoding.alpha, options.prompt_set) == (str(tmp_path), 0, "other")
    assert options.engine_arguments == ("--max-model-len", "99")
    assert (options.allow_origins, options.allow_hosts) == (("https://app.example",), ("d2e.example", "d2e"))


def test_a_model_without_a_recipe_is_served_at_one_half_or_with_the_decoder_given(
    started: Started,
) -> None:
    _serve("--engine", "vllm", "someone/a-model")
    assert (started[-1][1].decoding.alpha, started[-1][1].prompt_set) == (0.5, "default")
    _serve("--engine", "vllm", "--decoder", "adacad:floor=0.1", "someone/a-model")
    assert started[-1][1].decoding.decoder == "adacad:floor=0.1"
    refused = CliRunner().invoke(serve, ["--engine", "vllm", "--decoder", "mine:own", "someone/a-model"])
    assert "custom functions are not supported in vLLM" in str(refused.exception)


@pytest.mark.parametrize("installed", [True, False])
def test_the_engine_is_vllm_where_it_is_installed(
    tmp_path: Path, started: Started, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr("d2e_sft.commands.serve.find_spec", lambda name: object() if installed else None)
    engines: list[str] = []
    monkeypatch.setattr(of_vllm, "serve", lambda model, options: engines.append("vllm"))
    monkeypatch.setattr(start, "serve", lambda model, options: engines.append("transformers"))
    _serve(str(tmp_path))
    assert engines == ["vllm" if installed else "transformers"]


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "find_spec", lambda name: None)
    refused = refusal_of("serve", "--engine", "transformers", "someone/a-model")
    assert "needs starlette and uvicorn" in refused
    assert "d2e-sft[serve-transformers]" in refused
