"""What the Hub answers, and `d2e pull`, against a stand-in of the Hub."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.model.loading import load_model
from tests.d2e_sft.hub.runs import content_of, invoke, message_of
from tests.hub_server import HubServer, commit_of

NAME = "team/tiny"


@pytest.mark.parametrize("name", ["a/b/c", "team/", "team/with blank", "-tiny", "team/..", "https://hub/team/tiny"])
@pytest.mark.parametrize("verb", ["push", "pull"])
def test_a_malformed_name_is_one_message(
    hub: HubServer, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str, name: str
) -> None:
    arguments = ["push", run, "--", name] if verb == "push" else ["pull", "--", name, tmp_path / "out"]
    assert f"{name!r}: no name of a repository; expected OWNER/NAME" in message_of(capsys, *arguments)
    assert not hub.requests


@pytest.mark.parametrize(("status", "message"), [(401, "the token is not valid"), (403, "may not write there")])
def test_no_permission_is_one_message(
    hub: HubServer, run: Path, capsys: pytest.CaptureFixture[str], status: int, message: str
) -> None:
    hub.refuse["/api/repos/create"] = status
    assert message in message_of(capsys, "push", run, NAME)
    assert not hub.private


@pytest.mark.parametrize("verb", ["push", "pull"])
def test_no_network_is_one_message(
    hub: HubServer, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], verb: str,
) -> None:  # fmt: skip
    arguments = ("push", run, NAME) if verb == "push" else ("pull", NAME, tmp_path / "out")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in message_of(capsys, *arguments)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert "the Hub at http://127.0.0.1:9 cannot be reached" in message_of(capsys, *arguments)


def test_what_is_pulled_is_what_was_pushed(hub: HubServer, run: Path, tmp_path: Path) -> None:
    assert invoke("push", run, NAME).exit_code == 0
    out = tmp_path / "models" / "tiny"
    result = invoke("pull", NAME, out)
    assert result.exit_code == 0, result.output
    assert content_of(out) == hub.files[NAME]
    assert not out.with_name("tiny.partial").exists()
    assert load_model(str(out)).model.config.model_type == "llama"


def test_what_another_version_left_half_way_is_no_part_of_the_download(
    hub: HubServer, run: Path, tmp_path: Path
) -> None:
    assert invoke("push", run, NAME).exit_code == 0
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "adapter_config.json").write_text("{}")
    (tmp_path / "out.partial" / "config.json").write_text("{}")
    assert invoke("pull", NAME, tmp_path / "out").exit_code == 0
    assert content_of(tmp_path / "out") == hub.files[NAME]


def test_a_pull_that_broke_off_goes_on_with_what_has_arrived(
    hub: HubServer, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke("push", run, NAME).exit_code == 0
    out = tmp_path / "pulled"
    hub.refuse[f"/{NAME}/resolve/{commit_of(hub.files[NAME])}/model.safetensors"] = 403
    message = message_of(capsys, "pull", NAME, out)
    assert "answered 403: the token may not read it" in message
    assert not out.exists()
    arrived = {name for name in content_of(tmp_path / "pulled.partial") if not name.startswith(".cache")}
    assert arrived
    hub.refuse.clear()
    hub.requests.clear()
    assert invoke("pull", NAME, out).exit_code == 0
    fetched = {path.split("/resolve/")[1].partition("/")[2] for path in hub.asked("GET", f"/{NAME}/resolve/")}
    assert fetched == hub.files[NAME].keys() - arrived
    assert content_of(out) == hub.files[NAME]


def test_a_hub_that_goes_away_half_way_is_no_whole_download(
    hub: HubServer, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "config.json").write_text("{}")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert "cannot be reached" in message_of(capsys, "pull", NAME, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("team/none",), "there is no such repository or revision"),
        ((NAME, "--revision", "none"), "there is no such repository or revision"),
    ],
)
def test_what_is_not_there_is_one_message(
    hub: HubServer, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...],
    message: str,
) -> None:  # fmt: skip
    assert invoke("push", run, NAME).exit_code == 0
    assert message in message_of(capsys, "pull", arguments[0], tmp_path / "out", *arguments[1:])
    assert not (tmp_path / "out").exists()


def test_a_pull_overwrites_nothing(
    hub: HubServer, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    assert "already exists; expected a new folder" in message_of(capsys, "pull", NAME, tmp_path / "out")
    assert not hub.requests
