"""`d2e serve`, `chat`, `completion` and `recipes`: what a user types and sees."""

import io
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from d2e_sft import cli
from d2e_sft.commands.serve import serve
from d2e_sft.config.lookup import bundled_methods, bundled_models, bundled_recipes
from d2e_sft.config.recipe import Recipe, load_recipe
from d2e_sft.server import start
from d2e_sft.server.start import ServeOptions
from d2e_sft.util.paths import bundled
from d2e_sft.vllm import engine
from d2e_sft.vllm.server import serve as of_vllm
from tests.command import call, output_of, refusal_of
from tests.d2e_sft.hub.runs import make_run, write_data_record
from tests.tiny import save_tiny_model

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


def test_piped_lines_are_answered_and_a_bad_one_is_a_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = save_tiny_model(tmp_path / "model", seed=3)
    (tmp_path / "story.txt").write_text("It rained.")
    line = ["chat", model, "--context", tmp_path / "story.txt", "--max-new-tokens", 4]
    monkeypatch.setattr("sys.stdin", io.StringIO("Why was it wet?\n\n/context"))
    plain, debiased, shown = output_of(*line).splitlines()
    assert plain.startswith("plain     ")
    assert debiased.startswith("debiased  ")
    assert shown == "It rained."
    monkeypatch.setattr("sys.stdin", io.StringIO("/alhpa 1\n/context\n"))
    said = call(*line)
    assert (said.status, said.out) == (1, "It rained.\n")
    assert "/alhpa: no such command" in said.err
    assert "1 lines failed" in said.err


def test_a_context_that_cannot_be_read_is_told_before_a_model_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    (tmp_path / "empty.txt").touch()
    messages = {"no.txt": "does not exist", "latin.txt": "not a text file in UTF-8", "empty.txt": "empty"}
    for name, message in messages.items():
        assert message in refusal_of("chat", tmp_path / "no-model", "--context", tmp_path / name)


ROOT = Path(cli.__file__).parents[1]


def completed(shell: str, line: str) -> str:
    """What d2e answers to a shell for the last word of a line."""
    words = [*shlex.split(line), *([""] if line.endswith(" ") else [])]
    place = str(len(words) - 1) if shell == "bash" else words[-1]
    environment = {"_D2E_COMPLETE": f"{shell}_complete", "COMP_WORDS": line, "COMP_CWORD": place}
    return CliRunner().invoke(cli.d2e, prog_name="d2e", env=environment).output


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_verbs_subcommands_options_and_recipes_are_completed(shell: str) -> None:
    assert "train" not in completed(shell, "d2e d")
    for line, expected in {
        "d2e d": "doctor",
        "d2e data d": "download",
        "d2e train --a": "--auto-resume",
        "d2e train qwen3-0.6b/d": "qwen3-0.6b/d2e-lora",
        "d2e train --model qwen": "qwen3-0.6b",
        "d2e train --model qwen3-0.6b --method sft-q": "sft-qlora",
    }.items():
        assert expected in completed(shell, line)


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not here")
def test_the_bash_script_completes_in_bash(tmp_path: Path) -> None:
    (tmp_path / "d2e").write_text(
        f'#!/usr/bin/env bash\nexec {sys.executable} -c "from d2e_sft.cli import main; main()" "$@"\n'
    )
    (tmp_path / "d2e").chmod(0o755)
    script = """
        eval "$(d2e completion bash)"
        complete -p d2e
        COMP_WORDS=(d2e data do) COMP_CWORD=2
        _d2e_completion d2e do data
        echo "${COMPREPLY[@]}"
    """
    run = subprocess.run(
        ["bash", "-c", script],
        env={"PYTHONPATH": str(ROOT), "PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    registered, offered = run.stdout.splitlines()
    assert "_d2e_completion d2e" in registered
    assert offered == "download"


def test_models_and_methods_are_listed_on_a_screen_and_every_recipe_has_a_title() -> None:
    lines = output_of("recipes", "list").splitlines()
    assert len(lines) < 50
    names = [line.split()[0] for line in lines if "  " in line]
    assert names == ["model", *bundled_models(), "method", *bundled_methods()]
    listed = re.sub(r"\n {20,}", " ", output_of("recipes", "list", "/")).splitlines()[1:]
    assert [line.split()[0] for line in listed] == bundled_recipes()
    assert len({line.split(maxsplit=1)[1] for line in listed}) == len(listed), "each file begins with a comment"


def test_words_narrow_the_list_and_parts_are_listed_when_asked_for() -> None:
    names = [line.split()[0] for line in output_of("recipes", "list", "gemma-3", "QLORA").splitlines()[1:]]
    assert names == [f"gemma-3-{size}/{method}-qlora" for size in ("1b", "270m") for method in ("d2e", "sft")]
    listed = output_of("recipes", "list", "--parts", "methods/")
    assert "recipes/methods/d2e-lora.yaml " in listed
    assert "qwen3-0.6b/" not in listed


def test_a_file_is_shown_as_it_is_and_a_composed_recipe_as_one() -> None:
    file = bundled("recipes") / "methods" / "d2e-lora.yaml"
    assert output_of("recipes", "show", "recipes/methods/d2e-lora.yaml") == file.read_text("utf-8")
    name = "qwen3-0.6b/d2e-lora"
    shown = output_of("recipes", "show", name)
    assert shown.startswith("# Qwen3-0.6B: D²E-SFT by LoRA\n")
    content = yaml.safe_load(shown)
    assert list(content) == ["model", "data", "d2e", "train", "eval"]
    assert "seed" not in content["train"], "a default"
    assert Recipe.model_validate(content) == load_recipe(name)
    assert yaml.safe_load(output_of("recipes", "show", name, "--resolved")) == load_recipe(name).model_dump()


@pytest.mark.parametrize("options", [[], ["--resolved"]])
def test_a_copy_is_the_same_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]) -> None:
    name = "smollm2-360m/d2e-qlora"
    expected = load_recipe(name)
    monkeypatch.chdir(tmp_path)
    output_of("recipes", "copy", name, *options)
    copy = tmp_path / "smollm2-360m-d2e-qlora.yaml"
    assert "extends" not in yaml.safe_load(copy.read_text("utf-8")), "it stands alone"
    assert load_recipe(copy) == expected
    copy.write_text(copy.read_text("utf-8").replace(expected.train.output_dir, "runs/mine"))
    assert load_recipe(copy).train.output_dir == "runs/mine"


def test_a_copy_goes_where_it_is_told_and_replaces_nothing(tmp_path: Path) -> None:
    name, other = "smollm2-135m-quickstart/sft", tmp_path / "new" / "mine.yaml"
    copy = tmp_path / "smollm2-135m-quickstart-sft.yaml"
    output_of("recipes", "copy", name, tmp_path)
    output_of("recipes", "copy", name, other)
    assert copy.read_text() == other.read_text()
    copy.write_text("mine")
    assert "already exists" in refusal_of("recipes", "copy", name, tmp_path)
    assert copy.read_text() == "mine"
    output_of("recipes", "copy", name, tmp_path, "--overwrite")
    assert copy.read_text() != "mine"
