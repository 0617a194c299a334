"""`d2e push` and `d2e pull` against a stand-in of the Hub."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from d2e_sft.hub.export import export
from d2e_sft.model.loading import load_model
from tests.command import output_of, refusal_of
from tests.d2e_sft.hub.runs import content_of, make_run
from tests.factories import seal_run
from tests.hub_server import TOKEN, HubServer, commit_of

NAME = "team/tiny"


def test_the_hub_gets_the_export_in_one_commit(hub: HubServer, run: Path, tmp_path: Path) -> None:
    before = sorted(run.parent.iterdir())
    output = output_of("push", run, NAME)
    assert f"{hub.url}/{NAME} (private)" in output
    export(run, tmp_path / "out")
    expected = content_of(tmp_path / "out")
    expected["README.md"] = expected["README.md"].replace(b"OWNER/NAME", NAME.encode())
    assert hub.files == {NAME: expected}
    assert hub.private == {NAME: True}
    assert hub.messages == ["d2e-sft: tiny"]
    assert hub.tokens == {f"Bearer {TOKEN}"}
    assert sorted(run.parent.iterdir()) == before, "the folder in between is gone"


def test_an_interrupted_push_resumes_and_sends_what_is_missing(hub: HubServer, run: Path) -> None:
    tensors = load_file(run / "model.safetensors")
    save_file({name: t for i, (name, t) in enumerate(tensors.items()) if i % 2}, run / "model-2.safetensors")
    seal_run(run)
    hub.refuse["/api/models/team/tiny/commit"] = 500
    assert "answered 500" in (message := refusal_of("push", run, NAME))
    assert "the same command resumes" in message
    assert not hub.files, "nothing of a push that broke off is to be seen"
    assert len(hub.asked("PUT", "/store")) == 2
    hub.refuse.clear()
    output_of("push", run, NAME)
    assert len(hub.asked("PUT", "/store")) == 2, "what had arrived was sent again"
    assert "model.safetensors" in hub.files[NAME]
    output_of("push", run, NAME)
    assert len(hub.messages) == 1, "nothing has changed, so there is no other commit"


def test_a_name_without_an_owner_belongs_to_the_tokens_account(hub: HubServer, run: Path) -> None:
    output_of("push", run, "tiny")
    assert hub.private == {"tester/tiny": True}
    assert b'NAME = "tester/tiny"' in hub.files["tester/tiny"]["README.md"]


@pytest.mark.parametrize("name", ["tokenizer_notes.txt", "chat_template.jinja", "eval/mini/scores.json"])
def test_a_link_to_elsewhere_is_refused_and_not_sent(hub: HubServer, run: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "private").write_text('{"token": "of another program"}')
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(tmp_path / "private")
    seal_run(run)
    message = refusal_of("push", run, NAME)
    assert f"{run / name}: a link or path that leads out of {run}" in message
    assert "belongs to the push, copy it there" in message
    assert not hub.files
    assert "a link or path" in refusal_of("push", run, NAME, "--dry-run")
    if name.endswith(".txt"):  # within the folder it leads to no other file
        (run / name).unlink()
        (run / name).symlink_to(run / "config.json")
        seal_run(run)
        output_of("push", run, NAME)
        assert hub.files[NAME][name] == (run / "config.json").read_bytes()


def test_the_list_of_an_export_names_no_file_outside_of_it(hub: HubServer, run: Path, tmp_path: Path) -> None:
    export(run, tmp_path / "out")
    (tmp_path / "private").write_text("of another program")
    record = tmp_path / "out" / "d2e_export.json"
    content = json.loads(record.read_text())
    for name in ("../private", str(tmp_path / "private")):
        record.write_text(json.dumps({**content, "files": [*content["files"], name]}))
        assert "that leads out of" in refusal_of("push", tmp_path / "out", NAME)
    for text in ("", "null", "{}", '{"files": 3}'):
        record.write_text(text)
        assert "is not readable as the list of an export" in refusal_of("push", tmp_path / "out", NAME)
    assert not hub.files


def test_an_export_is_pushed_as_it_is_and_nothing_beside_it(hub: HubServer, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export(run, out)
    (out / "README.md").write_text("by hand: OWNER/NAME")
    (out / "secret.txt").write_text("mine")
    output_of("push", out, NAME)
    assert hub.files[NAME]["README.md"] == b"by hand: team/tiny"
    assert "secret.txt" not in hub.files[NAME]
    assert "is an export already" in refusal_of("push", out, NAME, "--merge")
    (out / "model.safetensors").unlink()
    assert "model.safetensors: no such file, but d2e_export.json lists it" in refusal_of("push", out, NAME)


def test_what_an_earlier_push_left_gives_way_and_other_files_stay(hub: HubServer, run: Path) -> None:
    hub.private[NAME] = False
    old = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"old", "eval/old/scores.json": b"{}"}
    old["spiece.model"] = b"old"
    hub.files[NAME] = {**old, "picture.png": b"mine"}
    assert "is a public repository" in refusal_of("push", run, NAME)
    assert hub.files[NAME].keys() == {*old, "picture.png"}
    output_of("push", run, NAME, "--public")
    assert "picture.png" in hub.files[NAME]
    assert not old.keys() & hub.files[NAME].keys()


def test_a_revision_is_a_branch_of_its_own(hub: HubServer, run: Path, tmp_path: Path) -> None:
    output_of("push", run, NAME, "--revision", "bold")
    output_of("push", run, NAME, "--revision", "bold")
    assert NAME not in hub.files
    assert "model.safetensors" in hub.files[f"{NAME}@bold"]
    output_of("pull", NAME, tmp_path / "pulled", "--revision", "bold")
    assert (tmp_path / "pulled" / "model.safetensors").is_file()


def test_a_dry_run_lists_files_and_sizes_and_needs_no_hub(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("d2e_sft.hub.client.get_token", lambda: None)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    output = output_of("push", run, NAME, "--dry-run")
    assert f"{(run / 'model.safetensors').stat().st_size:,}  model.safetensors" in output
    assert "13 files" in output
    assert "nothing was sent" in output


def test_an_adapter_whose_base_only_this_machine_has_is_not_pushed(hub: HubServer, tmp_path: Path) -> None:
    run = make_run(tmp_path, lora=True)
    message = refusal_of("push", run, NAME)
    assert f"its adapter belongs to '{tmp_path}/base', which others cannot load from the Hub" in message
    assert "--merge" in message
    assert not hub.asked("POST", "/api/repos")
    output_of("push", run, NAME, "--merge")
    assert "adapter_config.json" not in hub.files[NAME]


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
