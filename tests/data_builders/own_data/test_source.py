"""A user's own CSV, JSON or Parquet becomes samples as a few lines of YAML say."""

import json
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pytest
import yaml

from d2e_sft.data.built import read_manifest
from d2e_sft.data.sample import read_samples
from d2e_sft.util.errors import UserError
from data_builders.build.options import BuildOptions
from data_builders.build.run import IncompleteBuildError, build
from data_builders.own_data.rows import last_turn
from tests.command import output_of
from tests.data_builders.own_rows import QA, QA_ROWS, error_of, rows_of, write
from tests.tiny import TURNS

CASES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


def test_columns_have_the_names_of_the_parts_or_are_mapped(tmp_path: Path) -> None:
    rows = rows_of(write(tmp_path, mine_yaml=QA, mine_csv=QA_ROWS))
    assert [(row.context, row.question, row.answers) for row in rows] == [
        ("Rain fell, all day. The dam broke.", "Why did the dam break?", ["rain fell"]),
        ("Bo lit a candle. The lamp had broken.", "Why did Bo light a candle?", ["the lamp had broken"]),
    ]
    assert {(row.dataset, row.split, row.relation, row.format) for row in rows} == {("mine", "train", "causal", "qa")}
    assert [row.id for row in rows] == ["mine-train-2", "mine-train-3"]
    assert rows[0].meta == {"source": "mine.csv", "line": 2, "licence": "not stated"}
    text = "n,label,passage,query\n1,the frost,Frost came. The pipe burst.,What burst the pipe?\n"
    mapped = QA + "columns: {context: passage, question: query, answer: label}"
    (row,) = rows_of(write(tmp_path, mine_yaml=mapped, mine_csv=text))
    assert (row.context, row.answers) == ("Frost came. The pipe burst.", ["the frost"])


ROWS: list[dict[str, object]] = [
    {"context": "Ann sang.\nBo wept.", "question": "Why did Bo weep?", "answer": "Ann sang"},
    {"context": "Cy ran, fast.", "question": 'Who "ran"?', "answer": "Cy"},
]


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "json", "parquet", "jsonl.gz"])
def test_each_kind_of_file_gives_the_same_samples(tmp_path: Path, ending: str) -> None:
    spec = write(tmp_path, mine_yaml=QA.replace("csv", ending))
    frame, path = pd.DataFrame(ROWS), tmp_path / f"mine.{ending}"
    match ending:
        case "csv" | "tsv":
            frame.to_csv(path, sep="," if ending == "csv" else "\t", index=False)
        case "parquet":
            frame.to_parquet(path)
        case _:
            frame.to_json(path, orient="records", lines=ending != "json")
    assert [(row.context, row.question, row.answers) for row in rows_of(spec)] == [
        (row["context"], row["question"], [row["answer"]]) for row in ROWS
    ]


@pytest.mark.parametrize("case", CASES, ids=[case["what"] for case in CASES])
def test_columns_become_the_parts_of_samples(tmp_path: Path, case: dict[str, Any]) -> None:
    name = case["spec"]["train"].replace(".", "_")
    text = case["file"].replace("TURNS", json.dumps(TURNS))
    rows = rows_of(write(tmp_path, mine_yaml=yaml.safe_dump(case["spec"]), **{name: text}))
    found = [
        {part: getattr(row, part, row.meta.get(part)) for part in expected}
        for row, expected in zip(rows, case["rows"], strict=True)
    ]
    assert found == case["rows"]


def test_a_share_of_train_is_drawn_by_the_seed_and_shares_no_context(tmp_path: Path) -> None:
    stories = "".join(f"Story {c} is told.,Question {q}?,told\n" for c in range(40) for q in range(2))
    spec = write(tmp_path, mine_yaml=QA + "dev: 0.1\ntest: 0.25\n", mine_csv="context,question,answer\n" + stories)
    drawn = []
    for seed in (0, 0, 1):
        build(BuildOptions([str(spec)], tmp_path / "out", seed=seed, overwrite=True))
        rows = {split: read_samples(tmp_path / f"out/{split}.parquet") for split in ("train", "dev", "test")}
        assert {split: len(found) for split, found in rows.items()} == {"train": 52, "dev": 8, "test": 20}
        contexts = [{row.context for row in found} for found in rows.values()]
        assert sum(map(len, contexts)) == len(set().union(*contexts)) == 40
        assert all(row.split == split and row.id.startswith(f"mine-{split}-") for split in rows for row in rows[split])
        drawn.append([row.id for row in rows["test"]])
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_share_of_conversations_without_contexts_is_drawn_by_conversation(tmp_path: Path) -> None:
    talks = [json.dumps({"messages": [{"role": "user", "content": f"{n}?"}, *TURNS[-1:]]}) for n in range(10)]
    described = "train: talks.jsonl\ntest: 0.2\nformat: chat\ncontext_in: none\n"
    build(BuildOptions([str(write(tmp_path, mine_yaml=described, talks_jsonl="\n".join(talks)))], tmp_path / "out"))
    assert [len(read_samples(tmp_path / f"out/{split}.parquet")) for split in ("train", "test")] == [8, 2]


def test_a_share_of_turns_with_contexts_of_their_own_loses_none(tmp_path: Path) -> None:
    def talk(*contexts: str) -> str:
        asked = ({"role": "user", "content": f"<context>{context}</context>\nWhere?"} for context in contexts)
        return json.dumps({"messages": [turn for user in asked for turn in (user, TURNS[-1])]})

    # Every second conversation shares a context with the next one.
    talks = [talk(f"Shop {n} opens.", f"Town {n // 2} is old.") for n in range(20)]
    described = "train: talks.jsonl\ntest: 0.3\nformat: chat\nloss: each\n"
    build(BuildOptions([str(write(tmp_path, mine_yaml=described, talks_jsonl="\n".join(talks)))], tmp_path / "out"))
    train, test = (read_samples(tmp_path / f"out/{split}.parquet") for split in ("train", "test"))
    assert (len(train), len(test)) == (28, 12)
    assert {row.context for row in train}.isdisjoint(row.context for row in test)
    assert {row.meta["line"] for row in train}.isdisjoint(row.meta["line"] for row in test)


def test_own_data_goes_the_way_of_the_others(tmp_path: Path) -> None:
    """Bounds, other data sets beside it, benchmark rows left out, refined contexts, manifest and card."""
    spec = write(
        tmp_path / "user",
        mine_yaml=QA + "test: tests/own.jsonl\nlicence: mit\n",
        mine_csv=QA_ROWS + "Short.,Why?,so\n",
    )
    write(tmp_path / "user/tests", own_jsonl=json.dumps(ROWS[0]))
    leak = {"context": "Bo lit a candle. The lamp had broken.", "question": "Who lit it?", "answer": "Bo"}
    other = write(
        tmp_path / "other",
        mine_yaml=QA.replace("train: mine.csv", "name: kept\ntest: t.jsonl"),
        t_jsonl=json.dumps(leak),
    )
    build(BuildOptions([str(other)], tmp_path / "benchmark"))
    flags = ["--min-context-words", 3, "--against", tmp_path / "benchmark"]
    settings = ["boxes.train_samples=5", "boxes.test_samples=2"]
    output_of("data", "build", "--datasets", f"{spec},boxes", "--out", tmp_path / "out", *flags, *settings)
    (row,) = [row for row in read_samples(tmp_path / "out/train.parquet") if row.dataset == "mine"]
    assert (row.question, row.refined_context) == ("Why did the dam break?", "Rain fell. The dam broke.")
    assert read_samples(tmp_path / "out/test.parquet")[0].context == ROWS[0]["context"]
    manifest, card = read_manifest(tmp_path / "out"), (tmp_path / "out/README.md").read_text("utf-8")
    assert str(tmp_path) not in json.dumps(manifest) + card
    entry = manifest["datasets"]["mine"]
    assert (entry["licence"], entry["redistribution"]) == ("mit", "allowed by the licence")
    assert [(file["name"], file["checksum"]) for file in entry["files"]] == [
        ("mine.csv", "own file"),
        ("tests/own.jsonl", "own file"),
    ]
    assert entry["described_by"]["content"]["test"] == "tests/own.jsonl"
    assert "--datasets mine.yaml,boxes" in card
    assert "relation: causal\n" in card
    assert "- mit\n" in card


def test_the_manifest_names_no_folder_of_an_absolute_path(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / name, mine_csv=QA_ROWS.replace("dam", f"dam {name}"))
    text = f"train: {tmp_path}/a/mine.csv\ntest: {tmp_path}/b/mine.csv\nformat: qa\nrelation: causal\n"
    build(BuildOptions([str(write(tmp_path, mine_yaml=text))], tmp_path / "out"))
    assert str(tmp_path) not in (tmp_path / "out/manifest.json").read_text("utf-8")
    card = (tmp_path / "out/README.md").read_text("utf-8")
    assert "license: unknown" in card
    assert "mine.yaml states no licence" in card
    assert [row.meta["source"] for row in read_samples(tmp_path / "out/test.parquet")] == ["test/mine.csv"] * 2


def test_a_folder_of_datasets_is_read_as_a_file_and_named_without_its_folder(tmp_path: Path) -> None:
    chats = [{"messages": TURNS, "topic": "returns"} for _ in range(3)]
    datasets.DatasetDict({"train": datasets.Dataset.from_list(chats)}).save_to_disk(tmp_path / "saved")
    spec = write(tmp_path, mine_yaml=f"train: hf:{tmp_path}/saved\nformat: chat\nrows: 2\nname: chats\n")
    assert [row.answers for row in rows_of(spec)] == [["The receipt."]] * 2
    assert "repeated_rows" in (tmp_path / "out" / "manifest.json").read_text(encoding="utf-8")
    assert str(tmp_path) not in (tmp_path / "out" / "manifest.json").read_text(encoding="utf-8")
    result = build(BuildOptions([f"hf:{tmp_path}/saved"], tmp_path / "bare"))
    assert [(key[0], key[3], count) for key, count in result.counts.items()] == [("saved", "chat", 3)]


def test_weights_draw_in_proportion_and_repeat_nothing(tmp_path: Path) -> None:
    for name, weight, count in (("large", 1, 40), ("small", 3, 10)):
        lines = "".join(f"Story {name} {n}.,Why {n}?,told\n" for n in range(count))
        (tmp_path / f"{name}.csv").write_text("context,question,answer\n" + lines, encoding="utf-8")
        spec = f"train: {name}.csv\nformat: qa\nrelation: none\nweight: {weight}\n"
        (tmp_path / f"{name}.yaml").write_text(spec, encoding="utf-8")
    result = build(BuildOptions([str(tmp_path / "large.yaml"), str(tmp_path / "small.yaml")], tmp_path / "out"))
    assert [count for _, count in sorted(result.counts.items())] == [3, 10]
    (step,) = result.manifest["datasets"]["large"]["splits"]["train"]["filters"]
    assert (step["name"], step["rows_in"], step["rows_out"]) == ("mixture weight", 40, 3)


def test_another_delimiter_is_asked_for_and_then_read(tmp_path: Path) -> None:
    rows = QA_ROWS.replace('"', "").replace(",", ";").replace("fell;", "fell,")
    quoted = "\n".join(";".join(f'"{cell}"' for cell in line.split(";")) for line in rows.splitlines())
    for content in (quoted, rows):
        spec = write(tmp_path, mine_yaml=QA, mine_csv=content)
        assert 'perhaps `delimiter: ";"`' in str(error_of(spec).remedy)
    assert rows_of(write(tmp_path, mine_yaml=QA + 'delimiter: ";"\n'))[0].answers == ["rain fell"]


def test_bad_rows_are_put_aside_with_their_place(tmp_path: Path) -> None:
    spec = write(tmp_path, mine_yaml=QA, mine_csv="context,question,answer\n,Why?,so\n")
    with pytest.raises(UserError, match=r"none of its rows is usable(.|\n)*without --skip-bad"):
        rows_of(spec, skip_bad=True)
    described = QA + "test: 0.5\ndev: page.jsonl\n"  # so each split is read alone, train's file twice
    spec = write(tmp_path, mine_yaml=described, mine_csv=QA_ROWS + ",Why?,so\n", page_jsonl="<html>")
    with pytest.raises(IncompleteBuildError, match=r"lacks mine dev"):
        rows_of(spec, skip_bad=True)
    assert [len(read_samples(tmp_path / f"out/{split}.parquet")) for split in ("train", "test")] == [1, 1]
    (aside,) = [json.loads(line) for line in (tmp_path / "out/bad_rows.jsonl").read_text("utf-8").splitlines()]
    assert (aside["file"], aside["line"], aside["split"]) == ("mine/mine.csv", 4, "train")
    assert aside["error"].startswith("context: got ''")


def test_a_bad_split_costs_no_other_one_and_its_folder_stays_out_of_the_manifest(tmp_path: Path) -> None:
    spec = write(tmp_path, mine_yaml=QA + "test: t.csv\n", mine_csv=QA_ROWS, t_csv=QA_ROWS + ",Why?,so\n")
    with pytest.raises(IncompleteBuildError, match=r"t\.csv, line 4: context"):
        build(BuildOptions([str(spec)], tmp_path / "out"))
    assert len(read_samples(tmp_path / "out/train.parquet")) == 2
    manifest = (tmp_path / "out/manifest.json").read_text("utf-8")
    assert "t.csv, line 4" in manifest
    assert str(tmp_path) not in manifest


ASKED, SAID = {"role": "user", "content": "How long?"}, {"role": "assistant", "content": "5 days."}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([ASKED, SAID], "5 days."),
        ([SAID], "5 days."),
        ([{"from": "human", "value": "How long?"}, {"from": "gpt", "value": "5 days."}], "5 days."),
        (json.dumps([ASKED, SAID]), "5 days."),  # as a cell of a CSV file
        ("5 days.", "5 days."),
        ("[about] 5 days.", "[about] 5 days."),
        (["5 days.", "five days"], ["5 days.", "five days"]),
        ("", ""),
        (None, None),
    ],
)
def test_the_answer_of_turns_is_the_last_one_and_other_values_stay(value: Any, expected: Any) -> None:
    assert last_turn("worse", value) == expected


def test_two_descriptions_need_two_names_but_one_may_be_named_twice(tmp_path: Path) -> None:
    specs = [write(tmp_path / folder, mine_yaml=QA, mine_csv=QA_ROWS) for folder in ("a", "b")]
    with pytest.raises(UserError, match=r"b/mine\.yaml: its name is 'mine'"):
        build(BuildOptions([str(spec) for spec in specs], tmp_path / "out"))
    assert len(build(BuildOptions([str(specs[0])] * 2, tmp_path / "out")).manifest["datasets"]) == 1
