"""Verbs write into devices, pipes and through symbolic links instead of replacing them."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Thread

import pytest

from d2e_sft.data.sample import write_samples
from tests.command import output_of
from tests.eval.commands.test_score import save_answers
from tests.eval.systems.files import save
from tests.eval.systems.wiqa_files import GRAPH, OTHER, QUESTIONS
from tests.factories import make_run, make_world, prediction
from tests.tiny import make_sample

# FILE.ending is the output; other capitals are files of the world.
_COMMANDS = [
    "recipes copy smollm2-135m/sft FILE.yaml",
    "data list --json FILE.json",
    "data check OWN --against BENCH --json FILE.json",
    "data show TRAIN --html FILE.html",
    "data stats TRAIN --html FILE.html",
    "data stats TRAIN --json FILE.json",
    "data convert TRAIN FILE.jsonl",
    "data convert TRAIN --out FILE.jsonl",
    "recipes copy smollm2-135m/sft --out FILE.yaml",
    "data wiqa-questions --graphs GRAPHS --out FILE.jsonl",
    "score wiqa ANSWERS --gold GOLD --json FILE.json",
    "score wiqa ANSWERS --gold GOLD --latex FILE.tex",
    "score wiqa ANSWERS --gold GOLD --plot FILE.svg",
    "score wiqa --gold GOLD --template FILE.csv",
    "compare RUN OTHER --json FILE.json",
    "compare RUN OTHER --out FILE.md",
    "table RUN --out FILE.tex",
    "report RUN --out FILE.html",
    "predict MODEL TRAIN --max-new-tokens 2 --out FILE.csv",
    "inspect MODEL --bench BENCH --out FILE.html",
    "bench decode --model MODEL --prompts 200 --batches 1 --new-tokens 2 --json FILE.json",
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = make_world(tmp_path_factory.mktemp("world"), train=4, bench=4)
    places = {name: name.lower() for name in ("BENCH", "MODEL", "RUN", "OTHER")}
    for name in ("run", "other"):
        make_run(folder / name, [prediction(number, name == "run", dataset="tracie") for number in range(4)])
    write_samples([make_sample(70, context="The sun rose.", question="What rose?")], folder / "own.jsonl")
    save(folder / "graphs.jsonl", [GRAPH, OTHER])
    save(folder / "gold.jsonl", QUESTIONS)
    save_answers(folder / "answers.csv", 3)
    places |= {
        "TRAIN": "train.jsonl",
        "OWN": "own.jsonl",
        "GRAPHS": "graphs.jsonl",
        "GOLD": "gold.jsonl",
        "ANSWERS": "answers.csv",
    }
    return {name: folder / place for name, place in places.items()}


@pytest.mark.parametrize("command", _COMMANDS)
def test_an_output_that_is_no_regular_file_stays_what_it_is(
    world: dict[str, Path], tmp_path: Path, command: str
) -> None:
    def run(name: str) -> None:
        words = [word.replace("FILE", str(tmp_path / name)) for word in command.split()]
        output_of(*(world.get(word, word) for word in words))

    ending = command[command.index("FILE") + len("FILE") :].split(maxsplit=1)[0]
    pipe, link, device = (tmp_path / f"{name}{ending}" for name in ("pipe", "link", "device"))
    link.symlink_to(tmp_path / "target")
    device.symlink_to("/dev/null")
    os.mkfifo(pipe)
    content: list[bytes] = []
    reader = Thread(target=lambda: content.append(pipe.read_bytes()), daemon=True)
    reader.start()
    run("pipe")
    reader.join(10)
    assert content[0]
    assert pipe.is_fifo()
    run("link")
    assert link.is_symlink()
    assert (tmp_path / "target").read_bytes()
    run("device")
    assert device.is_symlink()
    assert Path("/dev/null").is_char_device()
    assert not list(tmp_path.glob("*.partial"))
