"""Damage to finished models, to the base of an adapter, and model folders with anything in their small files."""

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from d2e_sft.data.chat_template import ChatEncoder
from d2e_sft.model.loading import load_model
from d2e_sft.model.storage.folder import base_of_adapter, check_model_files
from d2e_sft.util.errors import UserError
from tests.attack.frame import Attempt, attack, flip_a_bit
from tests.command import output_of
from tests.factories import make_world, write_recipe
from tests.tiny import CHAT_TEMPLATE, save_tiny_model, tiny_tokenizer

REFUSED = "not loaded; the message names the file"
RUNS = ("whole", "adapter", "whole/checkpoint-2", "adapter/checkpoint-2", "export")
ODD = (
    *("", "null", "7", "[]", "{}", '"x"', "NaN", "\x00"),
    *("[" * 20_000, '{"a": ' * 20_000, '{"base_model_name_or_path": 7}'),
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs with a checkpoint each, and an export."""
    folder = make_world(tmp_path_factory.mktemp("world"), train=4)
    short = ("train.save_steps=2", "train.max_steps=2")
    output_of("train", write_recipe(folder, folder / "whole", *short))
    output_of("train", write_recipe(folder, folder / "adapter", *short, "model.lora={r: 2}"))
    output_of("export", folder / "adapter", folder / "export")
    return folder


def _copy(given: Attempt) -> tuple[Path, Path]:
    """A copy of one of the runs, and one of its sealed files."""
    name = given.random.choice(RUNS)
    run = Path(shutil.copytree(given.world / name, given.folder / Path(name).name))
    sealed = json.loads((run / "checksums.json").read_text())["files"]
    return run, run / given.random.choice(sorted(sealed))


def _refused(run: Path, damaged: Path) -> None:
    with pytest.raises(UserError, match=damaged.name):
        load_model(str(run))


@attack("flip a bit of a finished run, a checkpoint or an export", "models", REFUSED, tries=200)
def test_flip_a_bit(given: Attempt) -> None:
    run, file = _copy(given)
    file.write_bytes(flip_a_bit(file.read_bytes(), given.random))
    _refused(run, file)


@attack("cut, empty or remove a file of these", "models", REFUSED, tries=100)
def test_cut(given: Attempt) -> None:
    run, file = _copy(given)
    kept = given.random.choice([None, 0, given.random.randrange(file.stat().st_size)])
    if kept is None:
        file.unlink()
    else:
        os.truncate(file, kept)
    _refused(run, file)


@attack("other content of checksums.json, or none", "models", "not loaded", tries=50)
def test_checksums(given: Attempt) -> None:
    run, _ = _copy(given)
    seal = run / "checksums.json"
    if given.random.random() < 0.2:
        seal.unlink()
    else:
        content = json.loads(seal.read_text())
        content["files"] = {
            name: {"bytes": one["bytes"], "sha256": "0" * 64} for name, one in content["files"].items()
        }
        seal.write_text(given.random.choice([*ODD, json.dumps(content), json.dumps({"files": {}})]))
    with pytest.raises(UserError):
        load_model(str(run))


@attack("anything in adapter_config.json or an index of weights", "models", "rejected with one message", tries=100)
def test_small_files(given: Attempt) -> None:
    folder = save_tiny_model(given.folder / "model")
    text = given.random.choice(ODD)
    if given.random.random() < 0.5:
        (folder / "adapter_config.json").write_text(text)
        with pytest.raises(UserError):
            base_of_adapter(folder)
    else:
        (folder / "model.safetensors.index.json").write_text(text)
        with pytest.raises(UserError):
            check_model_files(folder)


LOOP, END = "{% for i in range(99999) %}", "{% endfor %}"
LARGE = ("'a' * 10 ** 10", "'a'.ljust(10 ** 10)", "'a'|center(10 ** 10)", "'%9999999999d'|format(1)", "[1] * 10 ** 10")
ENDLESS = (LOOP * 2 + END * 2, LOOP * 3 + "a" + END * 3, "{{ 9 ** (9 ** 9) }}", "{{ lipsum(n=10 ** 9) }}")
DOUBLED = "{% set a = namespace(t='a') %}{% for i in range(60) %}{% set a.t = a.t ~ a.t %}{% endfor %}"
CALLED = "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}"
TURNS = ("true", "add_generation_prompt", "messages|length > 3", "messages[0].role == 'system'")


@attack("chat templates that never end or fill the memory", "models", "rejected within seconds", tries=40)
def test_templates(given: Attempt) -> None:
    large = [f"{{{{ {each} }}}}" for each in LARGE]
    harm = given.random.choice([*ENDLESS, *large, DOUBLED, CALLED])
    when = given.random.choice(TURNS)
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = f"{{% if {when} %}}{harm}{{% endif %}}{{# {given.number} #}}" + CHAT_TEMPLATE
    started = time.process_time()
    with pytest.raises(UserError, match="its chat template takes more than"):
        ChatEncoder(tokenizer)
    assert time.process_time() - started < 1
