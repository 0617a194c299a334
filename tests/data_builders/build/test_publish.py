"""`d2e data push` against a stand-in of the Hub."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from d2e_sft.data.sample import read_samples, write_samples
from data_builders.build.card import render_card, write_card
from data_builders.build.options import BuildOptions
from data_builders.build.run import build
from data_builders.dataset.manifest import read_manifest
from tests.command import call, refusal_of
from tests.hub_server import TOKEN, HubServer


@pytest.fixture
def built(raw: Path, tmp_path: Path) -> Path:
    """A build whose source allows anything."""
    return _build(raw, tmp_path / "open", "tracie")


@pytest.fixture
def closed(raw: Path, tmp_path: Path) -> Path:
    """A build with a source whose licence allows nothing."""
    return _build(raw, tmp_path / "closed", "tracie", "mctaco")


def _build(raw: Path, out: Path, *datasets: str) -> Path:
    build(BuildOptions(datasets, out, raw))
    write_card(read_manifest(out), out)
    return out


def test_the_hub_gets_the_files_the_manifest_and_the_card(hub: HubServer, built: Path) -> None:
    result = call("data", "push", "team/rows", "--data", built)
    assert result.status == 0, result.out
    assert f"{hub.url}/datasets/team/rows (private)" in result.out
    names = ["train.parquet", "test.parquet", "manifest.json", "README.md"]
    assert hub.files == {"team/rows": {name: (built / name).read_bytes() for name in names}}
    assert hub.tokens == {f"Bearer {TOKEN}"}
    assert hub.private == {"team/rows": True}
    assert hub.messages == ["d2e-sft 0.1.0: tracie"]
    assert len(hub.stored) == 2  # the Parquet files, as large files


def test_a_name_alone_is_of_the_tokens_account(hub: HubServer, built: Path) -> None:
    assert call("data", "push", "rows", "--data", built, "--public").status == 0
    assert hub.private == {"tester/rows": False}


def test_pushing_again_commits_what_changed_to_the_same_repository(hub: HubServer, built: Path) -> None:
    for _ in range(2):
        assert call("data", "push", "team/rows", "--data", built).status == 0
    assert len(hub.messages) == 1
    (built / "README.md").write_text("another card")
    assert call("data", "push", "team/rows", "--data", built).status == 0
    assert len(hub.messages) == 2
    assert hub.files["team/rows"]["README.md"] == b"another card"
    assert len(hub.asked("PUT", "/store")) == 2


def test_nothing_but_the_build_is_sent(hub: HubServer, built: Path) -> None:
    (built / "notes.txt").write_text("private")
    (built / "bad_rows.jsonl").write_text("{}\n")
    assert call("data", "push", "team/rows", "--data", built).status == 0
    assert set(hub.files["team/rows"]) == {"train.parquet", "test.parquet", "manifest.json", "README.md"}


def test_a_missing_card_is_written_from_the_manifest(hub: HubServer, built: Path) -> None:
    (built / "README.md").unlink()
    assert call("data", "push", "team/rows", "--data", built).status == 0
    assert hub.files["team/rows"]["README.md"].decode() == render_card(read_manifest(built))


def test_closed_sources_go_to_a_private_repository_only(hub: HubServer, closed: Path) -> None:
    message = refusal_of("data", "push", "team/rows", "--data", closed, "--public")
    assert "rows of 1 datasets must not be published: mctaco (the publishers state no licence)" in message
    assert "--private" in message
    assert not hub.requests
    result = call("data", "push", "team/rows", "--data", closed)
    assert result.status == 0
    assert "mctaco: the publishers state no licence; keep the repository private" in result.err
    result = call("data", "push", "team/open", "--data", closed, "--public", "--allow-restricted")
    assert result.status == 0
    assert "published anyway" in result.err
    assert hub.private == {"team/rows": True, "team/open": False}


def test_a_private_push_never_lands_in_a_public_repository(hub: HubServer, closed: Path) -> None:
    hub.private["team/rows"] = False
    message = refusal_of("data", "push", "team/rows", "--data", closed)
    assert "team/rows: is a public repository; expected a private one" in message
    assert not hub.files


@pytest.mark.parametrize("name", ["README.md", "train.parquet"])
def test_a_link_to_a_file_elsewhere_is_refused(hub: HubServer, built: Path, tmp_path: Path, name: str) -> None:
    (built / name).rename(tmp_path / "elsewhere")
    (built / name).symlink_to(tmp_path / "elsewhere")
    message = refusal_of("data", "push", "team/data", "--data", built)
    assert f"{built / name}: a symbolic link, or a path, that leads out of {built}" in message
    assert not hub.files


def test_files_that_are_not_the_manifests_are_refused(hub: HubServer, built: Path) -> None:
    samples = read_samples(built / "train.parquet")
    write_samples(samples[1:], built / "train.parquet")
    message = refusal_of("data", "push", "team/rows", "--data", built)
    expected = json.loads((built / "manifest.json").read_text())["outputs"]["train.parquet"]["sha256"]
    assert f"expected {expected}, as manifest.json says" in message
    (built / "train.parquet").unlink()
    assert "train.parquet: no such file, but manifest.json lists it" in refusal_of(
        "data", "push", "team/rows", "--data", built
    )
    assert not hub.requests


@pytest.mark.parametrize(("folder", "message"), [("missing", "no such folder"), ("plain", "has no manifest.json")])
def test_a_folder_that_is_no_build_is_refused(hub: HubServer, tmp_path: Path, folder: str, message: str) -> None:
    (tmp_path / "plain").mkdir()
    assert message in refusal_of("data", "push", "team/rows", "--data", tmp_path / folder)
    assert not hub.requests


def test_a_missing_token_is_one_message(hub: HubServer, built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("d2e_sft.hub.client.get_token", lambda: None)
    message = refusal_of("data", "push", "team/rows", "--data", built)
    assert "no token for the Hub" in message
    assert "HF_TOKEN" in message
    assert not hub.requests


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/api/repos/create", 401, "answered 401: the token is not valid"),
        ("/api/repos/create", 403, "answered 403: the token may not write there"),
        ("/api/datasets/team/rows/preupload", 403, "answered 403: the token may not write there"),
        ("/api/datasets/team/rows/commit", 404, "answered 404: there is no such account or repository"),
        ("/api/repos/create", 400, "answered 400: refused by the test"),
        ("/api/repos/create", 500, "answered 500: the Hub has a failure of its own"),
    ],
)
def test_the_hubs_no_is_one_message(hub: HubServer, built: Path, path: str, status: int, message: str) -> None:
    hub.refuse[path] = status
    assert message in refusal_of("data", "push", "team/rows", "--data", built)
    assert not hub.messages


def test_a_hub_that_is_not_there_is_one_message(hub: HubServer, built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert "the Hub at http://127.0.0.1:9 cannot be reached" in refusal_of(
        "data", "push", "team/rows", "--data", built
    )


def test_a_name_that_the_hub_would_refuse_is_one_message(hub: HubServer, built: Path) -> None:
    assert "'a/b/c': no name of a repository; expected OWNER/NAME" in refusal_of(
        "data", "push", "a/b/c", "--data", built
    )
