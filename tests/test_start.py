"""What a command imports before it knows that it has something to do: a mistake is reported at once.

The modules are counted, not the seconds: torch and transformers take a second and more each.
"""

import json
import os
import shutil
import subprocess
import sys
from typing import Any

import pytest

from tests.command import d2e, verbs
from tests.factories import make_world, write_recipe
from tests.messages import Snapshot, words_of

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
REFUSALS = Snapshot(__file__)


@pytest.fixture(scope="module")
def called(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, dict[str, Any]]:
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
        "RECIPE": recipe, "MODEL": model, "FILE": rows, "RUN": run, "ADAPTER": adapter, "SCORED": scored,
        "FOREIGN": world / "foreign.jsonl", "BAD": world / "rows.jsonl", "NEW": world / "new",
        "MINE": world / "mine.yaml",
    }  # fmt: skip
    calls = [*HELP, *(words_of(line, places) for line in REFUSALS.expected)]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], input=json.dumps([HEAVY, calls]), capture_output=True, text=True, check=True,
        cwd=tmp_path_factory.mktemp("here"), env={**os.environ, "COLUMNS": "10000"},
    )  # fmt: skip
    for name, path in sorted(places.items(), key=lambda place: -len(str(place[1]))):
        done.stdout = done.stdout.replace(str(path), name)
    done.stdout = done.stdout.replace(world.name, "WORLD")
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    return dict(zip([*HELP, *REFUSALS.expected], outcomes, strict=True))


@pytest.mark.parametrize("words", HELP, ids=" ".join)
def test_help_imports_no_library_that_takes_long(called: dict[Any, dict[str, Any]], words: tuple[str, ...]) -> None:
    assert called[words]["status"] == 0, called[words]["said"]
    assert called[words]["heavy"] == []


@pytest.mark.parametrize("line", REFUSALS.expected)
def test_a_refusal_that_needs_no_model_imports_none_either(called: dict[Any, dict[str, Any]], line: str) -> None:
    assert (called[line]["status"], called[line]["heavy"]) == (1, [])
    REFUSALS.check(line, called[line]["said"].strip(), list(REFUSALS.expected))
