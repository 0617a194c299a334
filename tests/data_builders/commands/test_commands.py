"""`d2e data`: what the user types, sees, and pushes to a stand-in of the Hub."""

import dataclasses
import hashlib
import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.data.built import read_manifest
from d2e_sft.data.sample import EventSample, read_samples, write_samples
from d2e_sft.util.encrypted_zip import member_names, read_encrypted
from d2e_sft.util.files import write_whole
from data_builders.build.card import render_card
from data_builders.build.options import BuildOptions
from data_builders.build.run import build
from data_builders.build.suites import SUITES
from data_builders.raw.files import cached_path
from data_builders.raw.source import Input, RawFile
from data_builders.sources import SOURCES
from tests.command import Called, call, output_of, refusal_of
from tests.data_builders.own_rows import PASSAGE, QA, QA_ROWS, own_row, write
from tests.factories import ScriptedServer
from tests.hub_server import TOKEN, HubServer
from tests.tiny import CHAT_TEMPLATE, make_sample, save_tiny_model

_DERIVED = {"train": "reconstruct_rl/train.json", "test": "raw/event_dataset_test.json"}


@pytest.mark.parametrize("datasets", [["ecare, mctaco"], ["ecare", "--datasets", "mctaco"]])
def test_build_prints_counts_and_filters(raw: Path, tmp_path: Path, datasets: list[str]) -> None:
    result = call("data", "build", "--datasets", *datasets, "--raw", raw, "--out", tmp_path / "out")
    assert result.status == 0, result.out
    lines = [line.split() for line in result.out.splitlines()]
    assert ["dataset", "split", "relation", "format", "rows"] in lines
    assert ["ecare", "test", "causal", "scq", "2"] in lines
    assert ["mctaco", "test", "temporal", "mcq", "1"] in lines
    assert ["ecare", "train", "repeated", "rows", "3", "→", "2", "rows"] in lines
    assert "warning: ecare/train.jsonl: differs from the published file" in result.err


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        (
            "tempreason",
            ["Or add tempreason.test_file=event-event_839.jsonl, which reads TimeBench's 839 of the 4,426"],
        ),
        ("cqa", [f"Or add cqa.{split}_file={name}" for split, name in _DERIVED.items()]),
        ("matres", []),  # its substitutes have no address
    ],
)
def test_a_failed_download_names_the_option_that_reads_a_substitute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dataset: str, said: list[str]
) -> None:
    monkeypatch.setenv("D2E_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    message = " ".join(refusal_of("data", "build", "--datasets", dataset, "--out", tmp_path / "out").split())
    assert "cannot be downloaded (ConnectError" in message
    assert "by hand: " in message
    assert [text for text in said if text not in message] == []
    assert message.count("Or add") == len(said)


def test_quiet_names_only_the_files(tmp_path: Path) -> None:
    settings = ["habit.train_samples=40", "habit.test_samples=6"]
    result = call("data", "build", "--datasets", "habit", "--out", tmp_path, *settings, "--quiet")
    assert result.status == 0, result.err
    assert all(line.startswith("wrote ") for line in result.out.splitlines())
    assert f"wrote {tmp_path / 'test.parquet'}" in result.out


def _file(path: Path, *samples: EventSample) -> Path:
    write_samples(samples, path)
    return path


def test_check_names_the_pairs_and_the_remedy(tmp_path: Path) -> None:
    train = _file(tmp_path / "train.jsonl", own_row("train", 1), own_row("train", 2, context=PASSAGE))
    test = _file(tmp_path / "bench.parquet", own_row("test", context=PASSAGE))
    message = refusal_of("data", "check", train, "--against", test, "--json", tmp_path / "out" / "overlap.json")
    assert "1 of 2 training rows overlap with the benchmark; expected none" in message
    assert "context: own-train-2 = own-test-1: The river rose in spring" in message
    assert "remedy: remove these rows by their ids" in message
    written = json.loads((tmp_path / "out" / "overlap.json").read_text("utf-8"))
    assert written["overlapping_rows"] == 1
    assert [(pair["train_id"], pair["test_id"]) for pair in written["exact"]] == [("own-train-2", "own-test-1")]
    assert written["cells"][0]["test_set"] == "bench"


def test_check_passes_clean_sets_and_near_duplicates_unless_told(tmp_path: Path) -> None:
    near = own_row("train", context=PASSAGE + " Nobody was hurt.")
    train = _file(tmp_path / "train.jsonl", near)
    test = _file(tmp_path / "bench.jsonl", own_row("test", context=PASSAGE))
    printed = output_of("data", "check", train, "--against", test)
    assert "1 training rows: 0 overlap exactly, 1 have a near-duplicate" in printed
    assert "context 0.85: own-train-1 = own-test-1" in printed
    assert "1 of 1 training rows have a near-duplicate" in refusal_of(
        "data", "check", train, "--against", test, "--fail-on-near"
    )
    assert call("data", "check", train, "--against", test, "--fail-on-near", "--threshold", "0.9").status == 0
    twice = _file(tmp_path / "twice.jsonl", near, near.model_copy(update={"id": "again"}))
    assert (
        "1 training rows repeat another one in context, question and answers: again repeats own-train-1"
        in output_of("data", "check", twice, "--against", test)
    )


ROW = make_sample(format="nli", answers=["positive"], meta={"note": "é"})


def _json_rows(path: Path, *changes: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(ROW.model_dump() | change) + "\n" for change in changes), encoding="utf-8")
    return path


def test_convert_goes_to_parquet_and_back_without_loss(tmp_path: Path) -> None:
    source = _json_rows(tmp_path / "a.jsonl", {}, {"id": "2", "answers": ["negative"]})
    assert call("data", "convert", source, tmp_path / "b.parquet").status == 0
    result = call("data", "convert", tmp_path / "b.parquet", tmp_path / "c.jsonl")
    assert "c.jsonl: 2 rows" in result.out
    assert read_samples(tmp_path / "c.jsonl") == read_samples(source)


def test_convert_puts_bad_rows_aside_and_counts_them(tmp_path: Path) -> None:
    source = _json_rows(tmp_path / "a.jsonl", {}, {"answers": ["maybe"]}, {"split": "exam"})
    result = call("data", "convert", source, tmp_path / "b.parquet", "--skip-bad")
    assert "b.parquet: 1 rows" in result.out
    assert "2 bad rows put aside" in result.out
    aside = [json.loads(line) for line in (tmp_path / "b.parquet.bad.jsonl").read_text("utf-8").splitlines()]
    assert [entry["line"] for entry in aside] == [2, 3]
    assert call("data", "convert", str(_json_rows(source, {})), str(tmp_path / "b.parquet"), "--skip-bad").status == 0
    assert not (tmp_path / "b.parquet.bad.jsonl").exists()


def test_rows_of_a_source_are_shown_refined_as_a_build_would(raw: Path) -> None:
    lines = output_of("data", "show", "cider", "--raw", raw, "--rows", 2).splitlines()
    assert sum(line.startswith("cider-test-") for line in lines) == 2
    names = [line.split()[0] for line in lines if line[:1].isalpha() and not line.startswith("cider-test-")]
    assert names == ["question", "answer", "original", "imagined", "refined"] * 2
    assert lines[-1].endswith("rows of cider")
    assert max(map(len, lines)) <= 100


def test_a_row_is_found_by_its_id_and_its_options_are_numbered(raw: Path) -> None:
    ids = ("--id", "wiqa-test-2", "--id", "wiqa-test-1")
    text = output_of("data", "show", "wiqa", "--raw", raw, "--split", "test", *ids)
    assert re.findall(r"^wiqa-test-\d", text, re.MULTILINE) == ["wiqa-test-2", "wiqa-test-1"]
    assert "wiqa-test-1 · test · counterfactual · scq\n" in text
    assert "options   - more\n          - less\n          - no effect\n" in text
    assert text.endswith("rows of wiqa\n")


def test_a_folder_that_was_built_is_shown_and_a_page_is_written(built: Path, tmp_path: Path) -> None:
    assert "rows of" in output_of("data", "show", built, "--rows", 3)
    assert f"wrote {tmp_path / 'rows.html'}" in output_of(
        "data", "show", built, "--rows", 3, "--html", tmp_path / "rows.html"
    )
    page = html.unescape((tmp_path / "rows.html").read_text("utf-8"))
    assert page.count("<article") == 3
    shown = [row for row in read_samples(built / "test.parquet") if f">{row.id}<" in page]
    assert shown
    assert all(page.count(row.question) >= 3 for row in shown), "above the views, and in their prompts"


def test_bad_rows_are_put_aside_and_counted(tmp_path: Path) -> None:
    spec = write(tmp_path, mine_yaml=QA, mine_csv=QA_ROWS + "Snow fell.,What fell?,\n")
    printed = output_of("data", "build", "--datasets", spec, "--out", tmp_path / "out", "--skip-bad")
    assert "bad rows put aside: 1\n" in printed
    assert json.loads((tmp_path / "out" / "bad_rows.jsonl").read_text())["line"] == 4


def test_every_dataset_has_a_row_and_an_object_and_files_in_the_cache_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("D2E_CACHE", str(tmp_path))
    head, *rows = output_of("data", "list", "--json", tmp_path / "list.json").splitlines()
    assert head.split()[:2] == ["dataset", "format"]
    assert [row.split()[0] for row in rows[:-1]] == list(SOURCES)
    objects = {item["name"]: item for item in json.loads((tmp_path / "list.json").read_text())}
    assert (list(objects), objects["ecare"]["raw_in_cache"]) == (list(SOURCES), 0)
    write_whole(cached_path("ecare", SOURCES["ecare"].official[0]), "{}")
    assert listed()["ecare"]["raw_in_cache"] == 1


def listed() -> dict[str, dict[str, Any]]:
    return {item["name"]: item for item in json.loads(output_of("data", "list", "--json", "-"))}


def test_rows_are_the_papers_and_suites_shares_and_sizes_are_said() -> None:
    found = listed()
    assert found["cider"]["test_rows"] == {"temporal": 136, "causal": 1_469, "subevent_conditional": 356}
    assert found["ester"]["test_rows"] == {"causal": 1_617, "counterfactual": 1_957, "subevent_conditional": 108}
    assert found["boxes"]["test_rows"] == {}
    for suite in SUITES.values():
        assert [name for name, item in found.items() if suite.name in item["suites"]] == [
            name for name in SOURCES if name in suite.datasets
        ]
    assert sum(item["share_of_piper_10k"] or 0 for item in found.values()) == pytest.approx(100, abs=0.01)
    assert found["ecare"]["raw_bytes"] == sum(file.bytes for file in SOURCES["ecare"].official) > 0
    assert found["storycloze"]["by_hand"], "handed out on request"
    assert found["storycloze"]["raw_bytes"] is None


CONTENT = b'{"row": 1}'


def test_official_files_are_saved_and_missing_ones_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("D2E_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    digest, names = hashlib.sha256(CONTENT).hexdigest(), ("test.jsonl", "graphs.jsonl")
    train = RawFile("train.jsonl", by_hand="ask the authors")
    with ScriptedServer(lambda path, request: json.loads(CONTENT)) as server:
        test, graphs = (RawFile(name, f"{server.url}/{name}", "v1", digest, len(CONTENT)) for name in names)
        inputs = (Input("train", (train,), ("train",)), Input("test", (test,), ("test",)))
        monkeypatch.setitem(SOURCES, "wiqa", dataclasses.replace(SOURCES["wiqa"], inputs=inputs, others=(graphs,)))
        called = call("data", "download", "wiqa", "habit", "--out", tmp_path / "raw")
    assert called.status == 1
    for name in names:
        assert (tmp_path / "raw" / "wiqa" / name).read_bytes() == CONTENT
    assert "habit: is generated" in called.out
    assert "1 files could not be downloaded" in called.err
    assert "ask the authors; save it as DIR/wiqa/train.jsonl" in called.err


def test_the_command_writes_an_archive_or_plain_files(tmp_path: Path) -> None:
    printed = output_of("data", "boxes", tmp_path / "b.zip", "--scenarios", 20)
    assert "train.jsonl: 9 scenarios, 819 questions" in printed
    assert member_names(tmp_path / "b.zip") == ["train.jsonl", "dev.jsonl", "test.jsonl"]
    output_of("data", "boxes", tmp_path / "b", "--scenarios", 20, "--plain")
    assert (tmp_path / "b" / "dev.jsonl").read_text() == read_encrypted(tmp_path / "b.zip", "dev.jsonl")


NAMES = ("tracie", "ecare", "mctaco", "cider")


def test_the_manifest_says_where_every_row_came_from(raw: Path, tmp_path: Path) -> None:
    build(BuildOptions(NAMES, tmp_path / "out", raw, seed=5))
    text = (tmp_path / "out" / "manifest.json").read_text(encoding="utf-8")
    manifest = json.loads(text)
    assert manifest["seed"] == 5
    assert str(tmp_path) not in text
    for name, entry in manifest["datasets"].items():
        assert entry["licence"] == SOURCES[name].licence
        for file in entry["files"]:
            content = (raw / name / file["name"]).read_bytes()
            assert (file["bytes"], file["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
            assert file["commit"] in file["url"]
        for split in entry["splits"].values():
            for step in split["filters"]:
                assert step["reason"]
                assert step["rows_out"] <= step["rows_in"]
            assert (
                split["rows_written"] == split["filters"][-1]["rows_out"] if split["filters"] else split["rows_read"]
            )
    for name, output in manifest["outputs"].items():
        assert output["sha256"] == hashlib.sha256((tmp_path / "out" / name).read_bytes()).hexdigest()


def test_labels_show_which_tokens_of_a_conversation_have_a_loss(tmp_path: Path) -> None:
    turns = [("user", "How?"), ("assistant", "so"), ("user", "Why?"), ("assistant", "as")]
    row = {"messages": [{"role": role, "content": text} for role, text in turns]}
    (tmp_path / "chat.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "chat.yaml").write_text("train: chat.jsonl\nformat: chat\nloss: all\ncontext_in: none\n")
    model = save_tiny_model(tmp_path / "model")
    shown = output_of("data", "show", tmp_path / "chat.yaml", "--labels", model)
    assert "loss      3 tokens: 's' 'o' '<|end|>'" in shown
    assert "loss      3 tokens: 'a' 's' '<|end|>'" in shown
    assert "no loss   7 tokens: '<|user|>' 'W' 'h' 'y' '?' '<|end|>' '<|assistant|>'" in shown
    (model / "chat_template.jinja").write_text(CHAT_TEMPLATE.replace("<|end|>", "<|end|>\n"))
    loss = {"token": "3 tokens: 'a' 's' '<|end|>'", "template": r"4 tokens: 'a' 's' '<|end|>' '\n'"}
    for ends, tokens in loss.items():
        shown = output_of("data", "show", tmp_path / "chat.yaml", "--labels", model, "--end-of-turn", ends)
        assert f"loss      {tokens}" in shown


@pytest.fixture
def openly_built(raw: Path, tmp_path: Path) -> Path:
    """A build whose source allows anything."""
    build(BuildOptions(["tracie"], tmp_path / "open", raw))
    return tmp_path / "open"


def _push(openly_built: Path, *arguments: str) -> Called:
    return call("data", "push", *(arguments or ["team/rows"]), "--data", openly_built)


def test_the_hub_gets_the_files_the_manifest_and_the_card(hub: HubServer, openly_built: Path) -> None:
    (openly_built / "notes.txt").write_text("private")
    (openly_built / "bad_rows.jsonl").write_text("{}\n")
    result = _push(openly_built)
    assert result.status == 0, result.err
    assert f"{hub.url}/datasets/team/rows (private)" in result.out
    names = ["train.parquet", "test.parquet", "manifest.json", "README.md"]
    assert hub.files == {"team/rows": {name: (openly_built / name).read_bytes() for name in names}}
    assert hub.tokens == {f"Bearer {TOKEN}"}
    assert hub.private == {"team/rows": True}
    assert hub.messages == ["d2e-sft 0.1.0: tracie"]
    assert len(hub.stored) == 2  # the Parquet files, as large files


def test_a_missing_card_is_written_from_the_manifest(hub: HubServer, openly_built: Path) -> None:
    (openly_built / "README.md").unlink()
    assert _push(openly_built).status == 0
    assert hub.files["team/rows"]["README.md"].decode() == render_card(read_manifest(openly_built))


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
def test_a_link_to_a_file_elsewhere_is_refused(hub: HubServer, openly_built: Path, tmp_path: Path, name: str) -> None:
    (openly_built / name).rename(tmp_path / "elsewhere")
    (openly_built / name).symlink_to(tmp_path / "elsewhere")
    assert f"{openly_built / name}: a link or path that leads out of {openly_built}" in _push(openly_built).err
    assert not hub.files


def test_files_must_be_those_of_the_manifest(hub: HubServer, openly_built: Path) -> None:
    write_samples(read_samples(openly_built / "train.parquet")[1:], openly_built / "train.parquet")
    expected = read_manifest(openly_built)["outputs"]["train.parquet"]["sha256"]
    assert f"expected {expected}, as manifest.json says" in _push(openly_built).err
    (openly_built / "train.parquet").unlink()
    assert "train.parquet: no such file, but manifest.json lists it" in _push(openly_built).err
    assert not hub.requests
