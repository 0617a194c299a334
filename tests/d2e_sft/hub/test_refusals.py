"""What `d2e export`, `push` and `pull` refuse, each with one message and nothing written or sent."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.command import refusal_of
from tests.d2e_sft.hub.runs import content_of, make_run
from tests.hub_server import HubServer
from tests.messages import assert_messages

NAME = "team/tiny"
COMMANDS = (
    *(f"push RUN -- {name}" for name in ("a/b/c", "team/", "'team/with blank'", "-tiny", "https://hub/team/tiny")),
    "pull -- team/.. NEW",
    "export MISSING NEW",
    "export PLAIN NEW",
    "push MISSING team/tiny",
    "export BROKEN NEW",
    "export RUN FULL",
    "export RUN FULL --overwrite",
    "export ADAPTER NEW --dtype float16",
    "export RUN NEW --merge",
    "push RUN team/tiny --merge",
    "pull team/tiny FULL",
    *(f"pull team/tiny {place} --overwrite" for place in ("FULL", "RUN", "ADAPTER")),
    "pull team/none NEW",
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of a whole model, of an adapter and without a model, and folders that are no run."""
    world = tmp_path_factory.mktemp("world")
    make_run(world)
    make_run(world / "adapter", lora=True)
    (make_run(world / "broken") / "config.json").unlink()
    for name in ("plain", "full"):
        (world / name).mkdir()
    (world / "full" / "mine").write_text("mine")
    return world


def test_refusals_are_one_message_and_write_and_send_nothing(hub: HubServer, world: Path) -> None:
    places = {
        "RUN": world / "runs" / "tiny",
        "ADAPTER": world / "adapter" / "runs" / "tiny",
        "BROKEN": world / "broken" / "runs" / "tiny",
        **{name.upper(): world / name for name in ("missing", "plain", "full", "new")},
    }
    before = content_of(world)

    def refused(command: str) -> str:
        message = refusal_of(*(places.get(word, word) for word in shlex.split(command)))
        of_the_hub = r" \(Repo id .*?\)(?=\n)"
        return (
            re.sub(of_the_hub, "", message, flags=re.DOTALL)
            .replace(str(world), "WORLD")
            .replace(hub.url, "HUB")
            .strip()
        )

    assert_messages(__file__, {command: refused(command) for command in COMMANDS})
    assert content_of(world) == before
    assert not hub.asked("POST", "/api/repos")


@pytest.mark.parametrize(
    ("refused", "status", "message"),
    [
        ("/api/repos/create", 401, "answered 401: the token is not valid"),
        ("/api/repos/create", 403, "answered 403: the token may not write there"),
        ("/store", 403, "answered 403: the token may not write there"),
    ],
)
def test_the_hubs_refusal_is_one_message(hub: HubServer, world: Path, refused: str, status: int, message: str) -> None:
    hub.refuse[refused] = status
    assert message in refusal_of("push", world / "runs" / "tiny", NAME)
    assert not hub.files


@pytest.mark.parametrize("verb", ["push", "pull"])
def test_without_a_network_there_is_one_message(
    hub: HubServer, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    arguments = ("push", world / "runs" / "tiny", NAME) if verb == "push" else ("pull", NAME, tmp_path / "out")
    (tmp_path / "out.partial").mkdir()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in refusal_of(*arguments)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert "the Hub at http://127.0.0.1:9 cannot be reached" in refusal_of(*arguments)
    assert not (tmp_path / "out").exists()


def test_without_a_token_no_work_is_begun(hub: HubServer, world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("d2e_sft.hub.client.get_token", lambda: None)
    monkeypatch.setattr("d2e_sft.hub.push.export", lambda *_: pytest.fail("exported for nothing"))
    assert "no token for the Hub" in refusal_of("push", world / "runs" / "tiny", NAME)
    assert not hub.requests
