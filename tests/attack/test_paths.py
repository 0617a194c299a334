"""Paths that no file can have, in every option and recipe key that takes one."""

import os
from pathlib import Path

import pytest

from tests.attack.frame import Attempt, attack
from tests.attack.test_disk import files_of
from tests.command import refusal_of
from tests.factories import make_run, make_world, prediction, write_recipe

# BAD is the path; other capitals are files of the world, OUT a new one.
_COMMANDS = [
    "recipes show BAD",
    "recipes copy smollm2-135m/sft BAD",
    "data boxes BAD",
    "data build --datasets habit --out BAD",
    "data build --datasets tracie --raw BAD --out OUT",
    "data build --datasets habit --against BAD --out OUT",
    "data build --datasets BAD --out OUT",
    "data check BAD --against BENCH",
    "data check TRAIN --against BAD",
    "data convert BAD OUT.jsonl",
    "data convert TRAIN BAD.jsonl",
    "data export BAD --format trl --out OUT",
    "data export TRAIN --format trl --out BAD",
    "data export TRAIN --format trl --prompt-set BAD --out OUT",
    "data list --json BAD",
    "data show BAD",
    "data show TRAIN --html BAD",
    "data stats BAD",
    "data stats TRAIN --json BAD",
    "data stats TRAIN --tokenizer BAD",
    "data wiqa-questions --graphs BAD --out OUT",
    "train BAD",
    "train RECIPE train.output_dir=BAD",
    "train RECIPE train.output_dir=BAD --overwrite",
    "train RECIPE data.train=BAD",
    "train RECIPE data.dev=BAD",
    "train RECIPE data.prompt_set=BAD",
    "train RECIPE model.name=BAD",
    "sweep BAD d2e.alpha=0.1,0.2 --out OUT --bench BENCH",
    "sweep RECIPE train.seed=0,1 --out BAD --bench BENCH",
    "sweep RECIPE train.seed=0,1 --out OUT --bench BAD",
    "eval BAD --bench BENCH --out OUT",
    "eval MODEL --bench BAD --out OUT",
    "eval MODEL --bench BENCH --out BAD",
    "eval MODEL --bench BENCH --out OUT --prompt-set BAD",
    "predict MODEL BAD --out OUT.csv",
    "predict MODEL TRAIN --out BAD.csv",
    "predict MODEL TRAIN --mapping BAD --out OUT.csv",
    "score crepe BAD --gold TRAIN",
    "score crepe TRAIN --gold BAD",
    "compare RUN BAD",
    "compare RUN RUN --json BAD",
    "table RUN --out BAD",
    "report BAD --out OUT",
    "report RUN --out BAD",
    "errors BAD",
    "chat MODEL --context BAD",
    "inspect BAD --bench BENCH --out OUT",
    "inspect MODEL --bench BENCH --out BAD",
    "export BAD OUT",
    "push BAD me/mine --dry-run",
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = make_world(tmp_path_factory.mktemp("world"), train=4, bench=4)
    make_run(folder / "run", [prediction(number, True, dataset="tracie") for number in range(4)])
    write_recipe(folder, folder / "recipe")
    (folder / "file").write_text("")
    (folder / "loop").symlink_to(folder / "loop")
    places = {"BENCH": "bench", "MODEL": "model", "RUN": "run", "TRAIN": "train.jsonl", "RECIPE": "recipe.yaml"}
    return {name: folder / place for name, place in places.items()}


@attack(
    "paths through files, loops of links, NUL, names too long", "paths", "one message; nothing is written", tries=10
)
def test_paths(given: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(given.folder)
    folder = given.world["MODEL"].parent
    before = files_of(folder)
    for command in _COMMANDS:
        letter = given.random.choice("aé字")
        tail = "/".join(given.random.choices("xyz", k=given.random.randint(1, 3)))
        long = letter * given.random.randint(256, 9_000)
        bad = given.random.choice(
            [f"{folder}/file/{tail}", f"{folder}/loop/{tail}", f"/dev/null/{tail}", long, "a\0b"]
        )
        words = [word.replace("BAD", bad).replace("OUT", str(given.folder / "out")) for word in command.split()]
        message = refusal_of(*(given.world.get(word, word) for word in words))
        assert "rror: " in message, (command, bad[:80], message)
        assert "Errno" not in message, (command, bad[:80], message)
    assert files_of(folder) == before
    assert os.listdir(given.folder) == []
    given.things = len(_COMMANDS)
