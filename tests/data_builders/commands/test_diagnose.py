"""`d2e data diagnose`: one look at own rows, with and without a model."""

import json
import re
import shlex
from pathlib import Path

import pytest

from d2e_sft.config.recipe import load_recipe
from d2e_sft.data.sample import read_samples, write_samples
from tests.command import output_of, refusal_of
from tests.data_builders.own_rows import write
from tests.docs.commands import problem_of
from tests.tiny import make_sample, save_tiny_model

ROWS = "question,answer,context\n" + "".join(
    f"When did mill {n} burn down?,{1900 + n},In {1900 + n} the mill of Farley burnt down.\n" for n in range(20)
)
SPEC = "train: mine.csv\ntest: 0.2\nformat: qa\nrelation: none\n"


def test_a_description_is_diagnosed_without_a_build_and_the_page_says_the_same(tmp_path: Path) -> None:
    spec = write(tmp_path, mine_csv=ROWS, mine_yaml=SPEC)
    printed = output_of("data", "diagnose", spec, "--html", tmp_path / "page.html", "--json", tmp_path / "d.json")
    assert "recommended: SFT, compared with D²E without the KL term" in printed
    commands = [line[4:] for line in printed.replace(" \\\n      ", " ").splitlines() if line.startswith("  $ ")]
    assert commands[0] == f"d2e data build --datasets {spec} --swap-test 1 --out data/mine-by-subset"
    assert commands[-2:] == [
        "d2e eval runs/no-distill --bench data/mine-by-subset",
        "d2e compare runs/sft runs/no-distill",
    ]
    assert "note: With 16 training rows" in printed
    assert re.search(r"rows +refusals +in context +refined .*\n+mine +qa +16 +0 +100\.0 +16", printed)
    assert "No model was asked: add --model NAME." in printed
    found = json.loads((tmp_path / "d.json").read_text())
    assert found["measures"]["rows"] == 16
    assert found["recommended"]["name"] == "SFT, compared with D²E without the KL term"
    page = (tmp_path / "page.html").read_text()
    assert "Recommended: SFT, compared with D²E without the KL term" in page
    assert all(command.replace("'", "&#39;") in page for command in found["recommended"]["commands"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.json", "mine.csv", "mine.yaml", "page.html"]


@pytest.mark.parametrize("kind", ["description", "description without tests", "build", "rows"])
def test_advised_commands_run_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.chdir(tmp_path)
    has_tests = kind in ("description", "build")
    write(Path(), mine_csv=ROWS, mine_yaml=SPEC if has_tests else SPEC.replace("test: 0.2\n", ""))
    data = Path("mine.yaml")
    if kind in ("build", "rows"):
        data = Path("my data/built")
        output_of("data", "build", "--datasets", "mine.yaml", "--out", data, "--seed", 3)
        data = data if kind == "build" else data / "train.parquet"
    printed = output_of("data", "diagnose", data)
    lines = printed.replace(" \\\n      ", " ").splitlines()
    commands = [line[4:] for line in lines if line.startswith("  $ ")]
    assert [problem for command in commands if (problem := problem_of(command))] == []
    for _, *words in map(shlex.split, commands):
        if words[0] == "data":
            output_of(*words)
        if words[0] == "train":
            advised = load_recipe(f"{words[words.index('--model') + 1]}/sft")
            assert (advised.data.max_samples, advised.eval.max_samples) == (None, None)
        for word in words:
            assert not word.startswith("data.train=") or Path(word.removeprefix("data.train=")).is_file()
        if "--bench" in words:
            bench = words[words.index("--bench") + 1]
            assert (Path(bench) / "test.parquet").is_file() if has_tests else bench == "TEST"
    assert ("TEST stands for other rows" in printed) is not has_tests
    assert "my data/built" in printed or kind.startswith("description")


def test_a_model_is_asked_as_by_tag_and_tags_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("D2E_CACHE", str(tmp_path / "cache"))
    model = save_tiny_model(tmp_path / "model")
    output_of(
        "data", "build", "--datasets", write(tmp_path, mine_csv=ROWS, mine_yaml=SPEC), "--out", tmp_path / "mine"
    )
    output_of("data", "tag", tmp_path / "mine", "--model", model, "--out", tmp_path / "tagged")
    results = []
    for data, how in ((tmp_path / "mine", ("--model", model)), (tmp_path / "tagged", ())):
        output_of("data", "diagnose", data, *how, "--json", tmp_path / "d.json")
        found = json.loads((tmp_path / "d.json").read_text())
        results.append((found["habits_of"], found["groups"][0]["closed_book"]))
    assert results[0] == results[1]
    assert results[0][0] == {str(model): 16}


def test_swapped_rows_stay_marked_as_own_data_and_are_not_to_be_swapped_again(tmp_path: Path) -> None:
    spec, swapped = write(tmp_path, mine_csv=ROWS, mine_yaml=SPEC), tmp_path / "swapped"
    output_of("data", "build", "--datasets", spec, "--out", swapped, "--swap", 0.5, "--swap-test", 1)
    again = tmp_path / "again.yaml"
    again.write_text(
        "train: swapped/train.parquet\ntest: swapped/test.parquet\nformat: qa\ncolumns: {answer: answers}\n"
    )
    for data in (swapped, again):
        printed = output_of("data", "diagnose", data)
        assert "recommended: SFT on these rows, which are swapped" in printed
        assert re.search(r"no: the row is swapped already +8 ", printed)
        assert "--swap" not in printed.partition("recommended")[2]
    output_of("data", "build", "--datasets", again, "--out", tmp_path / "built")
    for split in ("train", "test"):
        before, after = (read_samples(folder / f"{split}.parquet") for folder in (swapped, tmp_path / "built"))
        marks = [row.meta.get("swapped") for row in before]
        assert any(marks)
        assert [row.meta.get("swapped") for row in after] == marks


def test_bad_rows_of_a_description_are_left_out_if_asked(tmp_path: Path) -> None:
    spec = write(tmp_path, mine_csv=ROWS + "Why?,,A b.\n", mine_yaml=SPEC)
    assert "add --skip-bad" in refusal_of("data", "diagnose", spec)
    assert "With 16 training rows" in output_of("data", "diagnose", spec, "--skip-bad")
    assert "is no description" in refusal_of("data", "diagnose", tmp_path / "mine", "--skip-bad")


def test_prompt_lengths_without_a_training_split_are_of_all_rows(tmp_path: Path) -> None:
    rows = [make_sample(n, split="dev" if n < 12 else "test") for n in range(24)]
    write_samples(rows, tmp_path / "rows.jsonl")
    output_of("data", "diagnose", tmp_path / "rows.jsonl", "--json", tmp_path / "d.json")
    found = json.loads((tmp_path / "d.json").read_text())
    assert found["measures"]["rows"] == 24
    assert {entry["view"]: entry["n"] for entry in found["lengths"]}["original"] == 24
