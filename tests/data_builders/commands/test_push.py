"""`d2e data push` against a stand-in of the Hub."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.data.built import read_manifest
from d2e_sft.data.sample import read_samples, write_samples
from data_builders.build.card import render_card
from data_builders.build.options import BuildOptions
from data_builders.build.run import build
from tests.command import Called, call, refusal_of
from tests.hub_server import TOKEN, HubServer


@pytest.fixture
def built(raw: Path, tmp_path: Path) -> Path:
    """A build whose source allows anything."""
    build(BuildOptions(["tracie"], tmp_path / "open", raw))
    return tmp_path / "open"


def _push(built: Path, *arguments: str) -> Called:
    return call("data", "push", *(arguments or ["team/rows"]), "--data", built)


def test_the_hub_gets_the_files_the_manifest_and_the_card(hub: HubServer, built: Path) -> None:
    (built / "notes.txt").write_text("private")
    (built / "bad_rows.jsonl").write_text("{}\n")
    result = _push(built)
    assert result.status == 0, result.err
    assert f"{hub.url}/datasets/team/rows (private)" in result.out
    names = ["train.parquet", "test.parquet", "manifest.json", "README.md"]
    assert hub.files == {"team/rows": {name: (built / name).read_bytes() for name in names}}
    assert hub.tokens == {f"Bearer {TOKEN}"}
    assert hub.private == {"team/rows": True}
    assert hub.messages == ["d2e-sft 0.1.0: tracie"]
    assert len(hub.stored) == 2  # the Parquet files, as large files


def test_pushing_again_commits_what_changed_to_the_same_repository(hub: HubServer, built: Path) -> None:
    for _ in range(2):
        assert _push(built).status == 0
    assert len(hub.messages) == 1
    (built / "README.md").write_text("another card")
    assert _push(built).status == 0
    assert len(hub.messages) == 2
    assert hub.files["team/rows"]["README.md"] == b"another card"
    assert len(hub.asked("PUT", "/store")) == 2


def test_a_missing_card_is_written_from_the_manifest(hub: HubServer, built: Path) -> None:
    (built / "README.md").unlink()
    assert _push(built).status == 0
    assert hub.files["team/rows"]["README.md"].decode() == render_card(read_manifest(built))


def test_closed_sources_go_to_a_private_repository_only(hub: HubServer, raw: Path, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    build(BuildOptions(["tracie", "mctaco"], closed, raw))
    message = refusal_of("data", "push", "team/rows", "--data", closed, "--public")
    assert "rows of 1 datasets must not be published: mctaco (the publishers state no licence)" in message
    assert "--private" in message
    assert not hub.requests
    result = _push(closed)
    assert "mctaco: the publishers state no licence; keep the repository private" in result.err
    result = _push(closed, "open", "--public", "--allow-restricted")
    assert "published anyway" in result.err
    assert hub.private == {"team/rows": True, "tester/open": False}


@pytest.mark.parametrize("name", ["README.md", "train.parquet"])
def test_a_link_to_a_file_elsewhere_is_refused(hub: HubServer, built: Path, tmp_path: Path, name: str) -> None:
    (built / name).rename(tmp_path / "elsewhere")
    (built / name).symlink_to(tmp_path / "elsewhere")
    assert f"{built / name}: a link or path that leads out of {built}" in _push(built).err
    assert not hub.files


def test_files_must_be_those_of_the_manifest(hub: HubServer, built: Path) -> None:
    write_samples(read_samples(built / "train.parquet")[1:], built / "train.parquet")
    expected = read_manifest(built)["outputs"]["train.parquet"]["sha256"]
    assert f"expected {expected}, as manifest.json says" in _push(built).err
    (built / "train.parquet").unlink()
    assert "train.parquet: no such file, but manifest.json lists it" in _push(built).err
    assert not hub.requests


@pytest.mark.parametrize(
    ("name", "folder", "refused", "message"),
    [
        ("team/rows", "missing", {}, "no such folder"),
        ("team/rows", ".", {}, "has no manifest.json"),
        ("a/b/c", "open", {}, "'a/b/c': not the name of a repository; expected OWNER/NAME"),
        ("team/rows", "open", {"/api/repos/create": 400}, "answered 400: refused by the test"),
        ("team/rows", "open", {"/api/repos/create": 500}, "answered 500: server error"),
        ("team/rows", "open", {"/api/datasets/team/rows/commit": 404}, "answered 404: there is no such account or"),
    ],
)
def test_a_wrong_folder_or_name_and_a_refusal_of_the_hub_are_one_message(
    hub: HubServer, built: Path, name: str, folder: str, refused: dict[str, int], message: str
) -> None:
    hub.refuse.update(refused)
    assert message in refusal_of("data", "push", name, "--data", built.parent / folder)
    assert bool(hub.requests) == bool(refused)
    assert not hub.messages
