"""What the Hub answers, and `d2e pull`, against a stand-in of the Hub."""

from __future__ import annotations

from pathlib import Path

from d2e_sft.model.loading import load_model
from tests.command import output_of, refusal_of
from tests.d2e_sft.hub.runs import content_of
from tests.hub_server import HubServer, commit_of

NAME = "team/tiny"


def test_files_of_another_version_are_not_part_of_the_download(hub: HubServer, run: Path, tmp_path: Path) -> None:
    output_of("push", run, NAME)
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "adapter_config.json").write_text("{}")
    (tmp_path / "out.partial" / "config.json").write_text("{}")
    output_of("pull", NAME, tmp_path / "out")
    assert content_of(tmp_path / "out") == hub.files[NAME]


def test_a_model_that_was_pulled_is_replaced_if_asked(hub: HubServer, run: Path, tmp_path: Path) -> None:
    output_of("push", run, NAME)
    out = tmp_path / "models" / "tiny"
    output_of("pull", NAME, out)
    (out / "of-before.txt").write_text("an earlier version")
    hub.requests.clear()
    assert "add --overwrite" in refusal_of("pull", NAME, out)
    assert not hub.requests
    output_of("pull", NAME, out, "--overwrite")
    assert content_of(out.parent) == {f"tiny/{name}": content for name, content in hub.files[NAME].items()}


def test_an_interrupted_pull_resumes(hub: HubServer, run: Path, tmp_path: Path) -> None:
    output_of("push", run, NAME)
    out = tmp_path / "models" / "tiny"
    hub.refuse[f"/{NAME}/resolve/{commit_of(hub.files[NAME])}/model.safetensors"] = 403
    message = refusal_of("pull", NAME, out)
    assert "answered 403: the token may not read it" in message
    assert not out.exists()
    arrived = {name for name in content_of(tmp_path / "models" / "tiny.partial") if not name.startswith(".cache")}
    assert arrived
    hub.refuse["/api/models/team/tiny"] = 500
    assert "tiny.partial keeps what has arrived" in refusal_of("pull", NAME, out)
    hub.refuse.clear()
    hub.requests.clear()
    output_of("pull", NAME, out)
    fetched = {path.split("/resolve/")[1].partition("/")[2] for path in hub.asked("GET", f"/{NAME}/resolve/")}
    assert fetched == hub.files[NAME].keys() - arrived
    assert content_of(out) == hub.files[NAME]
    assert not out.with_name("tiny.partial").exists()
    assert load_model(str(out)).model.config.model_type == "llama"
