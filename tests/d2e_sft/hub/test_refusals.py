"""What `d2e export`, `push` and `pull` refuse, each with one message and nothing written or sent."""

from pathlib import Path
from typing import Any

import pytest

from tests.command import refusal_of
from tests.d2e_sft.hub.runs import make_run
from tests.hub_server import HubServer
from tests.messages import refused_lines

NAME = "team/tiny"


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


@pytest.fixture
def places(hub: HubServer, world: Path) -> dict[str, Any]:
    runs = {"RUN": world, "ADAPTER": world / "adapter", "BROKEN": world / "broken"}
    folders = {name: world / name.lower() for name in ("MISSING", "PLAIN", "FULL")}
    return {**{name: folder / "runs" / "tiny" for name, folder in runs.items()}, **folders, "HUB": hub.url}


test_refusal = refused_lines(__file__)


@pytest.mark.parametrize(
    ("refused", "status", "message"),
    [
        ("/api/repos/create", 401, "answered 401: the token is not valid"),
        ("/api/repos/create", 403, "answered 403: the token may not write there"),
        (f"/api/models/{NAME}/commit", 404, "answered 404: there is no such account or"),
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
    monkeypatch.setattr("d2e_sft.hub.export.export", lambda *_: pytest.fail("exported for nothing"))
    assert "no token for the Hub" in refusal_of("push", world / "runs" / "tiny", NAME)
    assert not hub.requests
