"""`d2e push` and `d2e pull` against a stand-in of the Hub."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from safetensors.torch import load_file, save_file

from d2e_sft.cli import d2e, main
from d2e_sft.hub.export import export
from d2e_sft.model.loading import load_model
from tests.d2e_sft.hub.runs import make_run, write_scores
from tests.hub_server import TOKEN, HubServer, commit_of

NAME = "team/tiny"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = make_run(tmp_path)
    write_scores(run)
    return run


def _d2e(*arguments: object) -> Result:
    return CliRunner().invoke(d2e, [str(argument) for argument in arguments])


def _error(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    assert stopped.value.code == 1
    message = capsys.readouterr().err
    assert "Traceback" not in message
    assert "remedy:" in message
    return message


def _content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_hub_gets_the_export_in_one_commit(hub: HubServer, run: Path, tmp_path: Path) -> None:
    before = sorted(run.parent.iterdir())
    result = _d2e("push", run, NAME, "--private")
    assert result.exit_code == 0, result.output
    assert f"{hub.url}/{NAME} (private)" in result.output
    export(run, tmp_path / "out")
    expected = _content(tmp_path / "out")
    expected["README.md"] = expected["README.md"].replace(b"OWNER/NAME", NAME.encode())
    assert hub.files == {NAME: expected}
    assert hub.private == {NAME: True}
    assert hub.messages == ["d2e-sft: tiny"]
    assert hub.tokens == {f"Bearer {TOKEN}"}
    assert sorted(run.parent.iterdir()) == before, "the folder in between is gone"


def test_a_push_that_broke_off_goes_on_and_sends_what_is_missing(
    hub: HubServer, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = load_file(run / "model.safetensors")
    save_file({name: t for i, (name, t) in enumerate(tensors.items()) if i % 2}, run / "model-2.safetensors")
    hub.refuse["/api/models/team/tiny/commit"] = 500
    assert "answered 500" in (message := _error(capsys, "push", run, NAME))
    assert "the same command goes on" in message
    assert not hub.files, "nothing of a push that broke off is to be seen"
    assert len(hub.asked("PUT", "/store")) == 2
    hub.refuse.clear()
    assert _d2e("push", run, NAME).exit_code == 0
    assert len(hub.asked("PUT", "/store")) == 2, "what had arrived was sent again"
    assert "model.safetensors" in hub.files[NAME]
    assert _d2e("push", run, NAME).exit_code == 0
    assert len(hub.messages) == 1, "nothing has changed, so there is no other commit"


def test_a_name_alone_is_of_the_tokens_account(hub: HubServer, run: Path) -> None:
    assert _d2e("push", run, "tiny").exit_code == 0
    assert hub.private == {"tester/tiny": False}
    assert b'NAME = "tester/tiny"' in hub.files["tester/tiny"]["README.md"]


def test_an_upload_that_is_refused_shows_nothing(
    hub: HubServer, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.refuse["/store"] = 403
    assert "answered 403: the token may not write there" in _error(capsys, "push", run, NAME)
    assert not hub.files


def test_an_export_is_pushed_as_it_is_and_nothing_else_of_its_folder(
    hub: HubServer, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    export(run, out)
    (out / "README.md").write_text("by hand: OWNER/NAME")
    (out / "secret.txt").write_text("mine")
    assert _d2e("push", out, NAME).exit_code == 0
    assert hub.files[NAME]["README.md"] == b"by hand: team/tiny"
    assert "secret.txt" not in hub.files[NAME]
    assert "is an export already" in _error(capsys, "push", out, NAME, "--merge")
    (out / "model.safetensors").unlink()
    assert "model.safetensors: no such file, but d2e_export.json lists it" in _error(capsys, "push", out, NAME)


def test_what_an_earlier_push_left_gives_way_and_other_files_stay(hub: HubServer, run: Path) -> None:
    hub.private[NAME] = False
    old = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"old", "eval/old/scores.json": b"{}"}
    hub.files[NAME] = {**old, "picture.png": b"mine"}
    assert _d2e("push", run, NAME).exit_code == 0
    assert "picture.png" in hub.files[NAME]
    assert not old.keys() & hub.files[NAME].keys()


def test_a_revision_is_a_branch_of_its_own(hub: HubServer, run: Path, tmp_path: Path) -> None:
    assert _d2e("push", run, NAME, "--revision", "bold").exit_code == 0
    assert _d2e("push", run, NAME, "--revision", "bold").exit_code == 0
    assert NAME not in hub.files
    assert "model.safetensors" in hub.files[f"{NAME}@bold"]
    assert _d2e("pull", NAME, tmp_path / "pulled", "--revision", "bold").exit_code == 0
    assert (tmp_path / "pulled" / "model.safetensors").is_file()


def test_a_dry_run_lists_files_and_sizes_and_needs_no_hub(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("d2e_sft.hub.client.get_token", lambda: None)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    result = _d2e("push", run, NAME, "--dry-run")
    assert result.exit_code == 0, result.output
    assert f"{(run / 'model.safetensors').stat().st_size:,}  model.safetensors" in result.output
    assert "12 files" in result.output
    assert "nothing was sent" in result.output


def test_an_adapter_whose_base_only_this_machine_has_is_not_pushed(
    hub: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path, lora=True)
    message = _error(capsys, "push", run, NAME)
    assert f"its adapter belongs to '{tmp_path}/base', which others cannot load from the Hub" in message
    assert "--merge" in message
    assert not hub.asked("POST", "/api/repos")
    assert _d2e("push", run, NAME, "--merge").exit_code == 0
    assert "adapter_config.json" not in hub.files[NAME]


def test_a_missing_token_is_one_message_before_any_work(
    hub: HubServer, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("d2e_sft.hub.client.get_token", lambda: None)
    monkeypatch.setattr("d2e_sft.hub.push.export", lambda *_: pytest.fail("exported for nothing"))
    assert "no token for the Hub" in _error(capsys, "push", run, NAME)
    assert not hub.requests


@pytest.mark.parametrize("name", ["a/b/c", "team/", "team/with blank", "-tiny", "team/..", "https://hub/team/tiny"])
@pytest.mark.parametrize("verb", ["push", "pull"])
def test_a_malformed_name_is_one_message(
    hub: HubServer, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str, name: str
) -> None:
    arguments = ["push", run, "--", name] if verb == "push" else ["pull", "--", name, tmp_path / "out"]
    assert f"{name!r}: no name of a repository; expected OWNER/NAME" in _error(capsys, *arguments)
    assert not hub.requests


@pytest.mark.parametrize(("status", "message"), [(401, "the token is not valid"), (403, "may not write there")])
def test_no_permission_is_one_message(
    hub: HubServer, run: Path, capsys: pytest.CaptureFixture[str], status: int, message: str
) -> None:
    hub.refuse["/api/repos/create"] = status
    assert message in _error(capsys, "push", run, NAME)
    assert not hub.private


@pytest.mark.parametrize("verb", ["push", "pull"])
def test_no_network_is_one_message(
    hub: HubServer, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], verb: str,
) -> None:  # fmt: skip
    arguments = ("push", run, NAME) if verb == "push" else ("pull", NAME, tmp_path / "out")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in _error(capsys, *arguments)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert "the Hub at http://127.0.0.1:9 cannot be reached" in _error(capsys, *arguments)


def test_what_is_pulled_is_what_was_pushed(hub: HubServer, run: Path, tmp_path: Path) -> None:
    assert _d2e("push", run, NAME).exit_code == 0
    out = tmp_path / "models" / "tiny"
    result = _d2e("pull", NAME, out)
    assert result.exit_code == 0, result.output
    assert _content(out) == hub.files[NAME]
    assert not out.with_name("tiny.partial").exists()
    assert load_model(str(out)).model.config.model_type == "llama"


def test_what_another_version_left_half_way_is_no_part_of_the_download(
    hub: HubServer, run: Path, tmp_path: Path
) -> None:
    assert _d2e("push", run, NAME).exit_code == 0
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "adapter_config.json").write_text("{}")
    (tmp_path / "out.partial" / "config.json").write_text("{}")
    assert _d2e("pull", NAME, tmp_path / "out").exit_code == 0
    assert _content(tmp_path / "out") == hub.files[NAME]


def test_a_pull_that_broke_off_goes_on_with_what_has_arrived(
    hub: HubServer, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _d2e("push", run, NAME).exit_code == 0
    out = tmp_path / "pulled"
    hub.refuse[f"/{NAME}/resolve/{commit_of(hub.files[NAME])}/model.safetensors"] = 403
    message = _error(capsys, "pull", NAME, out)
    assert "answered 403: the token may not read it" in message
    assert not out.exists()
    arrived = {name for name in _content(tmp_path / "pulled.partial") if not name.startswith(".cache")}
    assert arrived
    hub.refuse.clear()
    hub.requests.clear()
    assert _d2e("pull", NAME, out).exit_code == 0
    fetched = {path.split("/resolve/")[1].partition("/")[2] for path in hub.asked("GET", f"/{NAME}/resolve/")}
    assert fetched == hub.files[NAME].keys() - arrived
    assert _content(out) == hub.files[NAME]


def test_a_hub_that_goes_away_half_way_is_no_whole_download(
    hub: HubServer, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "config.json").write_text("{}")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert "cannot be reached" in _error(capsys, "pull", NAME, tmp_path / "out")
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
    assert _d2e("push", run, NAME).exit_code == 0
    assert message in _error(capsys, "pull", arguments[0], tmp_path / "out", *arguments[1:])
    assert not (tmp_path / "out").exists()


def test_a_pull_overwrites_nothing(
    hub: HubServer, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    assert "already exists; expected a new folder" in _error(capsys, "pull", NAME, tmp_path / "out")
    assert not hub.requests


def test_the_scores_travel_without_paths_of_this_machine(hub: HubServer, run: Path) -> None:
    assert _d2e("push", run, NAME).exit_code == 0
    assert json.loads(hub.files[NAME]["eval/mini/scores.json"])["model"] == "runs/tiny"
