"""What a command imports before it knows that it has something to do: a mistake is reported at once.

The modules are counted, not the seconds: torch and transformers take a second and more each.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import Any

import pytest

from tests.command import d2e, verbs
from tests.factories import make_world, write_recipe

HEAVY = (
    "torch",
    "transformers",
    "peft",
    "accelerate",
    "deepspeed",
    "datasets",
    "pandas",
    "sklearn",
    "scipy",
    "matplotlib",
)
# Reads calls as JSON. Those that show help run one after another; each of the others runs in a fork of this process.
SCRIPT = """
import io, json, os, sys
from contextlib import redirect_stderr, redirect_stdout
from d2e_sft import cli

def run(words):
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        try:
            cli.main(words)
            status = 0
        except SystemExit as stop:
            status = stop.code or 0
    return {"status": status, "said": said.getvalue(), "heavy": [name for name in HEAVY if name in sys.modules]}

HEAVY, calls = json.load(sys.stdin)
for words in calls:
    if words[-1] == "--help":
        print(json.dumps(run(words)), flush=True)
    elif not (child := os.fork()):
        print(json.dumps(run(words)), flush=True)
        os._exit(0)
    else:
        os.waitpid(child, 0)
"""
HELP = [(*words, "--help") for words in verbs()]
TRAIN = ("train", "{recipe}")
EVAL = ("eval", "{model}", "--bench")
PUSHED = ("push", "{adapter}", "me/mine")
# Calls with a mistake, and a part of the message.
REFUSALS: dict[tuple[str, ...], str] = {
    (*TRAIN, "train.output_dir={run}"): "already contains a run",
    (*TRAIN, "train.output_dir={file}"): "is not a folder",
    (*TRAIN, "--resume"): "contains no run to resume",
    (*TRAIN, "--resume", "--overwrite"): "exclude each other",
    (*TRAIN, "d2e.aplha=1"): "unknown key 'd2e.aplha'",
    (*TRAIN, "data.train={foreign}"): "its rows lack",
    (*TRAIN, "data.train={bad}"): "rows.jsonl, line 2",
    (*TRAIN, "data.train=none.jsonl"): "no such file",
    (*TRAIN, "data.probe={file}"): "no sample's subset is 'aligned'",
    (*TRAIN, "data.prompt_set=nope"): "prompt set 'nope': not found",
    (*TRAIN, "model.name=./nowhere"): "no such folder",
    (*TRAIN, "model.name=me/unknown"): "HF_HUB_OFFLINE is set",
    (*TRAIN, "d2e.objective=json:nope"): "'nope' of",
    (*TRAIN, "model.dtype=float16"): "gradients of float16 weights underflow",
    (*TRAIN, "train.optim=grokadamw"): "needs the package grokadamw",
    (*TRAIN, "train.report_to=swanlab"): "the package swanlab is not installed",
    (*TRAIN, "--dry-run", "data.train=none.jsonl"): "no such file",
    (*TRAIN, "--dry-run", "train.output_dir={file}"): "is a file; expected a folder for the run",
    (*TRAIN, "--dry-run", "train.output_dir={file}/run"): "is a file; expected a folder for the run",
    (*TRAIN, "--launch", "ddpp"): "no such launcher",
    (*TRAIN, "--launch", "ddp", "--processes", "2", "train.output_dir={run}"): "already contains a run",
    (*EVAL, "nowhere"): "no such file or folder",
    (*EVAL, "{foreign}"): "line 1",
    (*EVAL, "{file}", "--decoder", "nope"): "no such decoder",
    (*EVAL, "{file}", "--prompt-set", "nope"): "not found",
    (*EVAL, "{file}", "--answer", "likelihood"): "ask for free text",
    (*EVAL, "{file}", "--setting", "few_shot", "--demonstrations", "nowhere"): "neither a file nor a folder",
    (*EVAL, "{file}", "--out", "{scored}", "--max-new-tokens", "3"): "with other options",
    ("eval", "./nowhere", "--bench", "{file}"): "no such folder",
    ("predict", "{model}", "{foreign}", "--out", "answers.txt"): "expected an ending",
    ("predict", "./nowhere", "{file}", "--out", "answers.jsonl"): "no such folder",
    ("compare", "nowhere"): "no such run folder",
    ("report", "nowhere", "--out", "report.html"): "no such run folder",
    ("inspect", "{model}", "--bench", "nowhere", "--out", "page.html"): "no such file or folder",
    ("inspect", "./nowhere", "--bench", "{file}", "--out", "page.html"): "no such folder",
    ("demo", "./nowhere"): "no such folder",
    ("chat", "./nowhere"): "no such folder",
    ("chat", "me/unknown"): "HF_HUB_OFFLINE is set",
    ("chat", "{model}", "--context", "nowhere"): "does not exist",
    (*PUSHED, "--dry-run"): "others cannot load from the Hub",
    ("push", "{run}", "a/b/c"): "a/b/c",
    ("export", "{model}", "out"): "no run",
    ("export", "{run}", "out"): "checksums.json is missing",
    ("sweep", "nowhere.yaml"): "no such recipe",
    ("sweep", "{recipe}", "d2e.aplha=1,2"): "unknown key 'd2e.aplha'",
    ("data", "stats", "nowhere"): "no such file",
    ("data", "build", "--datasets", "nope", "--out", "data"): "unknown dataset 'nope'",
    ("data", "build", "--datasets", "boxes", "--out", "{file}"): "is a file; expected a folder for the results",
    ("data", "tag", "{file}", "--model", "{model}", "--out", "{bad}"): "already exists",
    ("data", "tag", "{file}", "--model", "./nowhere", "--out", "new.jsonl"): "no such folder",
    ("data", "export", "{file}", "--format", "trl", "--out", "{run}"): "already exists",
    ("data", "diagnose", "nowhere"): "no such file",
    ("data", "show", "nowhere"): "unknown dataset 'nowhere'",
    ("data", "check", "nowhere", "--against", "{file}"): "no such file",
    ("data", "convert", "nowhere.jsonl", "rows.parquet"): "no such file",
    ("data", "push", "me/mine", "--data", "nowhere"): "no such folder",
    ("serve", "--engine", "transformers", "./nowhere"): "no such folder",
    ("errors", "nowhere"): "nowhere",
    ("table", "nowhere"): "nowhere",
    ("data", "build", "--suite", "piper-10k", "--raw", ".", "--out", "data"): "raw files are missing",
}  # fmt: skip


@pytest.fixture(scope="module")
def called(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], dict[str, Any]]:
    world = make_world(tmp_path_factory.mktemp("world"))
    recipe, model, rows = write_recipe(world, world / "new"), world / "model", world / "train.jsonl"
    run, adapter, scored = world / "run", world / "adapter", world / "scored"
    shutil.copytree(model, run)
    for folder in (run, adapter):
        folder.mkdir(exist_ok=True)
        shutil.copy(recipe, folder / "recipe.yaml")
    base = {"base_model_name_or_path": str(model)}
    (adapter / "adapter_config.json").write_text(json.dumps(base), encoding="utf-8")
    (world / "foreign.jsonl").write_text('{"q": "x", "a": "y"}\n', encoding="utf-8")
    lines = rows.read_text("utf-8").splitlines()
    (world / "rows.jsonl").write_text("\n".join([lines[0], '{"id": 7}', *lines[2:]]) + "\n", encoding="utf-8")
    assert d2e("eval", model, "--bench", rows, "--out", scored, "--max-new-tokens", 2) == 0
    places = {
        "recipe": recipe, "model": model, "file": rows, "run": run, "adapter": adapter, "scored": scored,
        "foreign": world / "foreign.jsonl", "bad": world / "rows.jsonl",
    }  # fmt: skip
    calls = [*HELP, *(tuple(word.format(**places) for word in words) for words in REFUSALS)]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], input=json.dumps([HEAVY, calls]), capture_output=True, text=True, check=True,
        cwd=tmp_path_factory.mktemp("here"),
    )  # fmt: skip
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    return dict(zip([*HELP, *REFUSALS], outcomes, strict=True))


@pytest.mark.parametrize("words", HELP, ids=" ".join)
def test_help_imports_no_library_that_takes_long(
    called: dict[tuple[str, ...], dict[str, Any]], words: tuple[str, ...]
) -> None:
    assert called[words]["status"] == 0, called[words]["said"]
    assert called[words]["heavy"] == []


@pytest.mark.parametrize("words", REFUSALS, ids=" ".join)
def test_a_refusal_that_needs_no_model_imports_none_either(
    called: dict[tuple[str, ...], dict[str, Any]], words: tuple[str, ...]
) -> None:
    assert called[words]["status"] == 1, called[words]["said"]
    assert REFUSALS[words] in " ".join(called[words]["said"].split())
    assert called[words]["heavy"] == []
