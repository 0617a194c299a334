"""Chat templates that never end or fill the memory are an error when a tokenizer is first used."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from d2e_sft.data import template_trial
from d2e_sft.data.chat_template import ChatEncoder, rendered
from d2e_sft.util.errors import UserError
from tests.tiny import CHAT_TEMPLATE, tiny_tokenizer

LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
DOUBLING = "{% set a = namespace(t='a') %}{% for i in range(60) %}{% set a.t = a.t ~ a.t %}{% endfor %}"
ENDLESS, LARGE = "1 s of CPU time", "256 MB of memory"


@pytest.fixture(autouse=True)
def _empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("D2E_CACHE", str(tmp_path))
    monkeypatch.setattr(template_trial, "_passed", set())


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (LOOPS, ENDLESS),
        ("{% if add_generation_prompt and messages|length > 2 %}" + LOOPS + "{% endif %}", ENDLESS),
        (DOUBLING, LARGE),
        ("{{ 'a'.ljust(10 ** 10) }}", LARGE),
    ],
)
def test_a_template_without_bounds_is_an_error_at_load(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, template: str, problem: str
) -> None:
    # A slow machine needs a while to fill the memory, and must not come to the other bound first.
    monkeypatch.setattr(template_trial, "_SECONDS", 1 if problem == ENDLESS else 60)
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template + CHAT_TEMPLATE
    started = time.process_time()
    with pytest.raises(UserError, match=f"its chat template takes more than {problem}"):
        ChatEncoder(tokenizer)
    assert not any(tmp_path.iterdir()), "nothing remembers it as good"
    assert time.process_time() - started < 1, "a child process did the work"


@pytest.mark.parametrize("template", ["{{ 1 / 0 }}", "{{ messages[9].content.x }}", "{{ '' + 1 }}", "{% for %}"])
def test_a_template_that_fails_is_an_error_with_its_reason(template: str) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(UserError, match="its chat template rejects the messages"):
        ChatEncoder(tokenizer)


@pytest.mark.parametrize("folder", ["cache", "file"])
def test_a_good_template_is_tried_once_for_all_processes_if_the_cache_can_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: str
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("D2E_CACHE", str(tmp_path / folder))
    forks, fork = list[int](), os.fork
    monkeypatch.setattr(os, "fork", lambda: forks.append(1) or fork())
    for _ in range(2):
        texts = [rendered(tiny_tokenizer(), [{"role": "user", "content": "Rain."}]) for _ in range(3)]
        assert texts == ["<|user|>Rain.<|end|>"] * 3
        monkeypatch.setattr(template_trial, "_passed", set())  # as in another process
    assert len(forks) == (1 if folder == "cache" else 2)


def test_a_template_that_cannot_be_tried_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")  # as under Windows
    assert rendered(tiny_tokenizer(), [{"role": "user", "content": "Rain."}]) == "<|user|>Rain.<|end|>"
