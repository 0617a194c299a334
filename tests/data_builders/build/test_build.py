"""Builds from the command line: suites, unreadable files, counts against the paper, and writing as a whole."""

import json
import os
import re
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest

from d2e_sft.data.built import read_manifest
from d2e_sft.data.sample import read_samples
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import write_whole
from data_builders.build.options import BuildOptions
from data_builders.build.run import build
from data_builders.build.suites import PIPER_10K, SUITES
from data_builders.raw.source import RawFile
from data_builders.sources import SOURCES
from tests.command import Called, Kill, call, finish, output_of, refusal_of, start
from tests.data_builders.reading import use_substitutes


def test_the_published_rows_are_those_of_the_paper() -> None:
    assert len(SUITES["piper"].published) == 15
    by_relation: Counter[str] = Counter()
    for row in SUITES["piper"].published:
        by_relation[row.relation] += row.count
    # The sums that the paper's appendix A gives below its Table 7.
    assert by_relation == {
        "temporal": 4_049,
        "causal": 7_909,  # the paper says 7,907; its own rows sum to two more
        "counterfactual": 5_944,
        "subevent_conditional": 464,
    }
    assert sum(by_relation.values()) == 18_366
    assert round(sum(PIPER_10K.ratios.values()), 6) == 100


def _build(raw: Path, folder: Path, suite: str, *flags: str | int) -> Called:
    return call("data", "build", "--suite", suite, *flags, "--raw", raw, "--out", folder / "out")


def test_piper_writes_test_rows_alone_and_merges_ester_and_cqa_into_cster(raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = _build(raw, tmp_path, "piper", "cosmosqa.rule=word")
    assert result.status == 0
    assert [path.name for path in sorted(out.glob("*.parquet"))] == ["test.parquet"]
    samples = read_samples(out / "test.parquet")
    cster = [sample for sample in samples if sample.dataset == "cster"]
    assert {sample.relation for sample in cster} == {"causal", "counterfactual"}
    assert {sample.meta["source_dataset"] for sample in cster} == {"ester", "cqa"}
    assert {sample.relation for sample in samples if sample.dataset == "ester"} == {"subevent_conditional"}
    assert not any(sample.dataset == "cqa" for sample in samples)
    assert all(sample.refined_context is None for sample in samples)
    # Published counts, and why others were obtained.
    unfolded = re.sub(r"\n {4,}", " ", result.out)  # a long reason stands below its row
    lines = {tuple(line.split()[:3]): line for line in unfolded.splitlines()}
    assert lines["temporal", "tracie", "nli"].split()[3:5] == ["2,039", "10"]
    assert "iid/tracie_test.txt differs from the published file" in lines["temporal", "tracie", "nli"]
    assert "option cosmosqa.rule=word (default substring)" in lines["causal", "cosmosqa", "scq"]
    rows = read_manifest(out)["published_counts"]
    assert [row["published"] for row in rows] == [row.count for row in SUITES["piper"].published]


@pytest.mark.parametrize(
    ("suite", "folder", "address"),
    [
        ("ood", "ood/storycloze", "cs.rochester.edu"),  # handed out on request
        ("conflict", "conflict/confiqa", "raw.githubusercontent.com/byronBBL/Context-DPO"),  # never downloaded here
    ],
)
def test_a_suite_is_complete_without_its_optional_files(
    raw: Path, tmp_path: Path, suite: str, folder: str, address: str
) -> None:
    shutil.rmtree(raw / folder)
    result = _build(raw, tmp_path, suite)
    assert result.status == 0, result.out
    assert address in result.err
    found = {sample.dataset for sample in read_samples(tmp_path / "out" / "test.parquet")}
    assert found == {name for name in SUITES[suite].datasets if SOURCES[name].raw_folder not in folder}


def test_the_conflict_suite_has_both_subsets_and_says_why_counts_differ(raw: Path, tmp_path: Path) -> None:
    shutil.rmtree(raw / "conflict/nq-swap")
    use_substitutes(raw, "torque")
    result = _build(raw, tmp_path, "conflict")
    assert result.status == 1, result.out  # one of its datasets is not there
    samples = read_samples(tmp_path / "out" / "test.parquet")
    assert {sample.dataset for sample in samples} == set(SUITES["conflict"].datasets) - {"nq_swap"}
    assert {sample.subset for sample in samples} == {"aligned", "conflict", "unanswerable"}
    assert {sample.split for sample in samples} == {"test"}
    manifest = read_manifest(tmp_path / "out")
    assert manifest["failures"] == {
        "nq_swap": "conflict/nq-swap/dev-00000-of-00001.parquet: no such file; expected "
        "a raw file of nq_swap (dev-00000-of-00001.parquet), which its train and test rows need"
    }
    counts = manifest["published_counts"]
    assert [row["dataset"] for row in counts] == list(SUITES["conflict"].datasets)
    reasons = {row["dataset"]: row["reason"] for row in counts}
    assert "hateful sentences are read on request only" in reasons["memotrap"]
    # A file that stands in for several is named once.
    files = [file["name"] for file in manifest["datasets"]["torque"]["files"]]
    assert files == ["torque/individual_dev_end2end_final.json", "derived/torque_subsets.json"]
    assert reasons["torque"].count("derived/torque_subsets.json is read") == 1
    assert "torque/individual_dev_erp_bias.json and 11 more are not here" in reasons["torque"]


def test_files_that_the_instruction_set_lacks_are_named_before_any_is_read(raw: Path, tmp_path: Path) -> None:
    (raw / "ecare/train.jsonl").write_text("damaged\n")
    (raw / "ood/socialiqa/dev.jsonl").unlink()
    for dataset, file in (("tempreason", "train_l3.json"), ("wiqa", "train.jsonl")):
        (raw / dataset / file).unlink()
    message = " ".join(_build(raw, tmp_path, "piper-10k").err.split())
    assert "3 raw files are missing, and piper-10k wants 700 rows of tempreason, 1,280 rows of wiqa:" in message
    for file in ("tempreason/train_l3.json", "wiqa/train.jsonl", "ood/socialiqa/dev.jsonl"):
        assert f"{raw / file}: no such file" in message
        assert f"save it as DIR/{file}" in message
    assert "--allow-shortfall" in message
    allowed = " ".join(_build(raw, tmp_path, "piper-10k", "--allow-shortfall").err.split())
    assert allowed.index("3 raw files are missing; the other rows are built") < allowed.index("not a JSON object")
    assert not (tmp_path / "out").exists(), "a damaged file is no shortfall"


@pytest.mark.parametrize("lacking", [(), ("tempreason/test_l3.json", "wiqa/test.jsonl", "wiqa/train.jsonl"), None])
def test_downloads_that_fail_are_named_at_once_and_the_others_are_built(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: tuple[str, ...] | None
) -> None:
    """`lacking` cannot be downloaded; None: nothing can."""
    asked = list[str]()

    def fetch(folder: str, file: RawFile) -> Path:
        asked.append(f"{folder}/{file.name}")
        if lacking is None or asked[-1] in lacking or not (raw / asked[-1]).is_file():
            raise UserError(f"https://host/{asked[-1]}: cannot be downloaded", f"save it as DIR/{asked[-1]}")
        return raw / asked[-1]

    monkeypatch.setattr("data_builders.raw.files.fetch", fetch)
    ended = call("data", "build", "--suite", "piper", "--out", tmp_path / "out")
    message = " ".join(ended.err.split())
    failed = ["tempreason/test_l3.json", "wiqa/test.jsonl"] if lacking else asked if lacking is None else []
    for file in failed:
        assert f"https://host/{file}: cannot be downloaded remedy: save it as DIR/{file}" in message
        assert asked.count(file) == 1
    assert ended.status == (1 if failed else 0)
    assert (tmp_path / "out").is_dir() == (lacking is not None)
    assert ("2 raw files are missing; the other rows are built" in message) == bool(lacking)


def test_an_allowed_shortfall_is_drawn_and_recorded(raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (raw / "tempreason/train_l3.json").unlink()
    assert _build(raw, tmp_path, "piper-10k", "--allow-shortfall", "--size", 12).status == 0
    samples = read_samples(out / "train.parquet")
    mixture = read_manifest(out)["mixture"]
    assert Counter(sample.dataset for sample in samples) == {
        name: entry["drawn"] for name, entry in mixture["datasets"].items() if entry["drawn"]
    }
    assert mixture["rescaled"]
    assert mixture["datasets"]["tempreason"]["drawn"] == 0
    assert mixture["datasets"]["tempreason"]["reason"].startswith("tempreason/train_l3.json: no such file")
    assert all(sample.split == "train" and sample.refined_context for sample in samples)
    for dataset in read_manifest(out)["datasets"].values():
        steps = [step for step in dataset["splits"]["train"]["filters"] if step["unit"] == "rows"]
        assert [step["rows_in"] for step in steps[1:]] == [step["rows_out"] for step in steps[:-1]]
        assert steps[-1]["rows_out"] == dataset["splits"]["train"]["rows_written"]


def _tree(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("suite", ["piper", "piper-10k", "conflict"])
def test_same_inputs_and_seed_give_the_same_bytes(raw: Path, tmp_path: Path, suite: str) -> None:
    elsewhere = tmp_path / "another" / "place"
    shutil.copytree(raw, elsewhere / "raw")
    extra = ["--allow-shortfall", "--size", "10"] if suite == "piper-10k" else []
    for folder in (tmp_path, elsewhere):
        assert _build(folder / "raw", folder, suite, *extra).status == 0
    assert _tree(tmp_path / "out") == _tree(elsewhere / "out")
    if suite == "piper-10k":
        _build(raw, tmp_path, suite, *extra, "--seed", 1, "--overwrite")
        assert _tree(tmp_path / "out")["train.parquet"] != _tree(elsewhere / "out")["train.parquet"]


def test_a_damaged_benchmark_is_no_benchmark(raw: Path, tmp_path: Path) -> None:
    """A test row that cannot be read cannot be kept out of the training set."""
    path = raw / "ood/socialiqa/dev.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[0]["answerA"] = ""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ["--allow-shortfall", "--size", "10"]
    assert "socialiqa/dev.jsonl, line 1" in _build(raw, tmp_path, "piper-10k", *flags).err
    result = _build(raw, tmp_path, "piper-10k", *flags, "--skip-bad")
    assert result.status == 0, result.err
    assert "socialiqa: training rows were not compared with 1 bad test rows" in result.err
    assert read_manifest(tmp_path / "out")["benchmark"]["bad_rows"] == {"socialiqa": 1}


def test_a_dataset_has_the_same_rows_whatever_else_is_built(raw: Path, tmp_path: Path) -> None:
    build(BuildOptions(["cider", "tracie"], tmp_path / "both", raw))
    build(BuildOptions(["tracie"], tmp_path / "alone", raw))
    both = [s for s in read_samples(tmp_path / "both" / "test.parquet") if s.dataset == "tracie"]
    assert both == read_samples(tmp_path / "alone" / "test.parquet")


def test_a_split_without_rows_has_no_file_and_leftovers_go(raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    build(BuildOptions(["tracie"], out, raw))
    (out / "own.txt").write_text("mine")
    with pytest.raises(UserError, match=r"already contains a build(.|\n)*--overwrite"):
        build(BuildOptions(["cider"], out, raw))
    assert (out / "train.parquet").is_file()
    build(BuildOptions(["cider"], out, raw, overwrite=True))
    assert sorted(path.name for path in out.iterdir()) == ["README.md", "manifest.json", "own.txt", "test.parquet"]


def test_bad_rows_are_put_aside_and_counted(raw: Path, tmp_path: Path) -> None:
    path = raw / "tracie/iid/tracie_train.txt"
    path.write_text(path.read_text("utf-8") + "no row at all\n", encoding="utf-8")
    with (raw / "ecare/train.jsonl").open("ab") as file:
        file.write(b'{"index": "\xff"}\n[1]\n')
    build(BuildOptions(["tracie", "ecare"], tmp_path / "out", raw, skip_bad=True))
    aside = [json.loads(line) for line in (tmp_path / "out/bad_rows.jsonl").read_text("utf-8").splitlines()]
    assert [(entry["file"], entry["line"]) for entry in aside] == [
        ("tracie/iid/tracie_train.txt", 5),
        ("ecare/train.jsonl", 4),
        ("ecare/train.jsonl", 5),
    ]
    assert "not UTF-8" in aside[1]["error"]
    datasets = json.loads((tmp_path / "out/manifest.json").read_text("utf-8"))["datasets"]
    assert datasets["ecare"]["splits"]["train"]["bad_rows"] == 2
    assert datasets["ecare"]["splits"]["test"]["bad_rows"] == 0


@pytest.mark.parametrize("name", ["README.md", "train.parquet", "manifest.json"])
def test_files_that_no_build_wrote_are_not_overwritten(raw: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(UserError, match=f"contains {name}, which no build of this project wrote"):
        build(BuildOptions(["mctaco"], tmp_path, raw))
    assert (tmp_path / name).read_text() == "{}"


def test_rows_without_their_answer_are_counted_with_and_without_filter(raw: Path, tmp_path: Path) -> None:
    splits = []
    for setting in ("true", "false"):
        settings = ("tempreason.max_words=none", f"tempreason.answer_in_context={setting}")
        output_of("data", "build", "--datasets", "tempreason", "--raw", raw, "--out", tmp_path / setting, *settings)
        splits.append(read_manifest(tmp_path / setting)["datasets"]["tempreason"]["splits"]["test"])
    (step,) = (step for step in splits[0]["filters"] if step["name"] == "answer in the context")
    assert (step["rows_in"], step["rows_out"], splits[0]["rows_written"]) == (2, 1, 1)
    assert (splits[1]["rows_written"], splits[1]["rows_with_answer_in_context"]) == (2, 1)


@pytest.mark.parametrize("kind", ["file", "in a file", "read-only"])
def test_a_read_only_target_is_refused_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    (tmp_path / "file").write_text("")
    out = {"file": tmp_path / "file", "in a file": tmp_path / "file" / "out", "read-only": tmp_path}[kind]
    if kind == "read-only":  # the tests may run as a user whom no permission stops
        monkeypatch.setattr("os.access", lambda _, mode: mode == os.R_OK)
    message = refusal_of("data", "build", "--datasets", "no-such-dataset", "--out", out)
    assert "is a file; expected a folder" in message or "cannot be written; expected a folder" in message
    assert "--out" in message


def test_a_failed_write_leaves_the_earlier_build(raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    assert call("data", "build", "--datasets", "tracie", "--raw", raw, "--out", out).status == 0
    before = _tree(out)

    def disk_full(*_: object) -> None:
        raise OSError(28, "No space left on device", "manifest.json")

    monkeypatch.setattr("data_builders.build.writing.write_json", disk_full)
    message = refusal_of(
        "data", "build", "--datasets", "tracie", "--raw", raw, "--out", out, "--seed", "5", "--overwrite"
    )
    assert "manifest.json: cannot be written (No space left on device)" in message
    assert _tree(out) == before


def test_the_next_build_removes_what_a_killed_one_left(raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("build", "--datasets", "tracie", "--raw", raw, "--out", out)
    killed = Kill("data_builders.build.writing:render_card")
    assert finish(start(tmp_path, arguments, killed, verb="data")).status == -signal.SIGKILL
    assert [path.name[:7] for path in out.iterdir()] == [".build-"]
    own = out / ".build-notes" / "mine.txt"
    write_whole(own, "not of a build")
    assert call("data", *arguments).status == 0
    assert sorted(path.name for path in out.glob(".*")) == [".build-notes"]
    assert own.read_text() == "not of a build"


def test_a_missing_file_costs_its_own_split_and_a_damaged_one_its_dataset(raw: Path, tmp_path: Path) -> None:
    (raw / "wiqa/train.jsonl").unlink()
    (raw / "ecare/train.jsonl").write_text("")
    (raw / "ifqa/full_split/test.json").write_text("<!DOCTYPE html><html>Not found</html>")
    out = tmp_path / "out"
    message = refusal_of("data", "build", "--datasets", "wiqa,ecare,tracie,ifqa", "--raw", raw, "--out", out)
    assert "wiqa/train.jsonl: no such file" in message
    assert "ecare/train.jsonl: the file is empty" in message
    assert "test.json: holds a web page (HTML), not data" in message
    assert "the result is incomplete: it lacks ecare train, ifqa, wiqa train" in message
    assert {sample.dataset for sample in read_samples(out / "test.parquet")} == {"wiqa", "ecare", "tracie"}
    assert {sample.dataset for sample in read_samples(out / "train.parquet")} == {"tracie"}
    failures = read_manifest(out)["failures"]
    assert set(failures) == {"ecare train", "wiqa train", "ifqa"}
    assert "holds a web page (HTML), not data" in failures["ifqa"]
