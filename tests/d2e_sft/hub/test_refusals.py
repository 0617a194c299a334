"""What `d2e export`, `push` and `pull` refuse, each with one message and nothing written or sent."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.command import refusal_of
from tests.d2e_sft.hub.runs import content_of, make_run
from tests.hub_server import HubServer

NAME = "team/tiny"
NO_NAMES = ("a/b/c", "team/", "team/with blank", "-tiny", "https://hub/team/tiny")
REFUSALS = [
    *((f"push RUN -- {name!r}", f"{name!r}: not the name of a repository; expected OWNER/NAME") for name in NO_NAMES),
    ("pull -- 'team/..' NEW", "'team/..': not the name of a repository; expected OWNER/NAME"),
    ("export MISSING NEW", "missing: no run (no recipe.yaml); expected a folder that `d2e train` wrote"),
    ("export PLAIN NEW", "plain: no run (no recipe.yaml)"),
    ("push MISSING team/tiny", "missing: no run (no recipe.yaml)"),
    ("export BROKEN NEW", "config.json is missing"),
    ("export RUN FULL", "full: already exists; expected a new folder"),
    ("export RUN FULL --overwrite", "full: is no export, so --overwrite would not replace it"),
    ("export ADAPTER NEW --dtype float16", "--dtype float16: "),
    ("export RUN NEW --merge", "is a whole model, with nothing to merge"),
    ("push RUN team/tiny --merge", "is a whole model, with nothing to merge"),
    ("pull team/tiny FULL", "already exists; expected a new folder"),
    *((f"pull team/tiny {one} --overwrite", "is no downloaded model, so") for one in ("FULL", "RUN", "ADAPTER")),
    ("pull team/none NEW", "there is no such repository or revision"),
]


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


@pytest.mark.parametrize(("command", "message"), REFUSALS, ids=[command for command, _ in REFUSALS])
def test_a_refusal_is_one_message(hub: HubServer, world: Path, command: str, message: str) -> None:
    places = {
        "RUN": world / "runs" / "tiny",
        "ADAPTER": world / "adapter" / "runs" / "tiny",
        "BROKEN": world / "broken" / "runs" / "tiny",
        **{name.upper(): world / name for name in ("missing", "plain", "full", "new")},
    }
    before = content_of(world)
    assert message in refusal_of(*(places.get(word, word) for word in shlex.split(command)))
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
def test_the_hub_refuses_with_one_message(
    hub: HubServer, world: Path, refused: str, status: int, message: str
) -> None:
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


def test_without_a_token_there_is_one_message_before_any_work(
    hub: HubServer, world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("d2e_sft.hub.client.get_token", lambda: None)
    monkeypatch.setattr("d2e_sft.hub.push.export", lambda *_: pytest.fail("exported for nothing"))
    assert "no token for the Hub" in refusal_of("push", world / "runs" / "tiny", NAME)
    assert not hub.requests
