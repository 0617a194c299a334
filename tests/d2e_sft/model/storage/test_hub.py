"""A Hub that does not answer is asked once; its cache is read, and what it lacks is refused with the remedy."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from d2e_sft.model.loading import load_config, load_tokenizer
from d2e_sft.model.storage import hub
from d2e_sft.model.storage.builtin import BUILTIN
from d2e_sft.model.storage.hub import find_model
from d2e_sft.util.errors import UserError
from tests.factories import ScriptedServer
from tests.servers import free_port
from tests.tiny import save_tiny_model


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Sets the address of the Hub, which this process has not asked yet, and an empty cache."""

    def at(address: str) -> None:
        monkeypatch.setattr(hub, "_SILENT", {})
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))

    return at


def test_a_hub_behind_a_broken_gateway_is_asked_once_and_the_remedy_names_ways_without_it(
    asked: Callable[[str], None],
) -> None:
    with ScriptedServer(lambda path, request: (503, {})) as server:
        asked(server.url)
        for name in ("me/first", "me/second"):
            with pytest.raises(UserError, match=f"model '{name}': {server.url} does not answer .HTTP 503") as refused:
                load_config(name)
            assert all(way in str(refused.value) for way in ("HF_HUB_OFFLINE=1", "HF_ENDPOINT", BUILTIN))
        assert len(server.requests) == 1


def test_without_a_network_the_cache_is_read_and_the_processes_that_are_started_do_not_ask(
    asked: Callable[[str], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked(f"http://127.0.0.1:{free_port()}")
    kept = tmp_path / "cache/models--me--tiny"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs/main").write_text("0123456789abcdef0123456789abcdef01234567", encoding="utf-8")
    save_tiny_model(kept / "snapshots/0123456789abcdef0123456789abcdef01234567")
    assert find_model("me/tiny") == "me/tiny"
    assert load_tokenizer("me/tiny")[1] is False
    assert capsys.readouterr().err.count("does not answer") == 1
    assert os.environ["HF_HUB_OFFLINE"] == "1"


def test_a_recipe_in_the_place_of_a_model_is_told_its_base() -> None:
    for name in ("smollm2-135m-mini", "smollm2-135m-mini/d2e"):
        with pytest.raises(UserError, match=r"is a recipe, not a model\n.*its base, builtin:smollm2-135m-instruct"):
            find_model(name)
