"""The published ways to part training from evaluation, checked on the text alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from d2e_sft.data.sample import EventSample, read_samples
from data_builders.boxes.objects import OBJECTS, RARE_OBJECTS
from data_builders.boxes.official import official_rows
from data_builders.boxes.scenarios import VARIANTS, Variant
from data_builders.build.options import BuildOptions
from data_builders.build.run import build

Splits = dict[str, list[EventSample]]


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> dict[Variant, Splits]:
    """20 scenarios of each variant, as rows to train on."""
    built = {}
    for variant in VARIANTS:
        settings = ["boxes.scenarios=20", f"boxes.variant={variant}"]
        files = build(BuildOptions(["boxes"], tmp_path_factory.mktemp(variant), settings=settings)).files
        built[variant] = {path.stem: read_samples(path) for path in files if path.suffix == ".parquet"}
    return built


def things(samples: list[EventSample]) -> set[str]:
    return {thing for sample in samples for thing in re.findall(r"\b[Tt]he ([\w-]+)", sample.context)} - {"contents"}


def test_numops_trains_on_two_operations_and_tests_on_twelve(variants: dict[Variant, Splits]) -> None:
    for variant in ("numops", "altforms_numops"):
        splits = variants[variant]
        assert {sample.meta["operations"] for sample in splits["train"]} == {0, 1, 2}
        assert {sample.meta["operations"] for sample in splits["test"]} == set(range(13))
        assert len(splits["train"]) == 9 * 3 * 7  # 990 scenarios then give the published 20,790


def test_vocab_trains_on_objects_that_no_test_has(variants: dict[Variant, Splits]) -> None:
    splits = variants["vocab"]
    assert things(splits["train"]) <= set(RARE_OBJECTS)
    assert things(splits["test"]) <= set(OBJECTS)
    assert things(splits["dev"]) <= set(OBJECTS)
    assert all(sample.context.startswith("Box 0 contains") for sample in splits["train"])


def test_altforms_share_two_words_with_the_test(variants: dict[Variant, Splits]) -> None:
    for variant in ("altforms", "altforms_numops"):
        train, test = (
            {word for sample in variants[variant][split] for word in re.findall(r"[a-z]+", sample.context.lower())}
            for split in ("train", "test")
        )
        assert train & test <= {"the", "into", "and", "nothing"}
        assert all("Container" in sample.question for sample in variants[variant]["train"])
        assert all("Box" in sample.question for sample in variants[variant]["test"])


def test_moved_contents_are_not_named_and_can_be_found_in_the_refined_context(
    variants: dict[Variant, Splits],
) -> None:
    told = 0
    for split in ("train", "test"):
        for sample in variants["move_contents"][split]:
            told += "the contents of" in sample.context
            assert sample.refined_context is not None
            for text in (sample.context, sample.refined_context):
                box = str(sample.meta["box"])
                assert contents_by_text(text)[box] == things_in(sample.answers[0]), (text, box)
    assert told > 100


def things_in(text: str) -> set[str]:
    return set(re.findall(r"the (\w+)", text))


def contents_by_text(text: str) -> dict[str, set[str]]:
    """A second simulation, which starts from the clauses that are there."""
    opening, *operations = text.removesuffix(".").split(". ")
    found = [re.fullmatch(r"Box (\d+) contains (.+)", clause) for clause in opening.split(", ")]
    world = {match[1]: things_in(match[2]) for match in found if match}
    for sentence in operations:
        boxes = re.findall(r"Box (\d+)", sentence)
        whole = "the contents of" in sentence
        moved = set(world[boxes[0]]) if whole else things_in(sentence)
        if not sentence.startswith("Put"):
            world.setdefault(boxes[0], set()).difference_update(moved)
        if not sentence.startswith("Remove"):
            world.setdefault(boxes[-1], set()).update(moved)
    return world


@pytest.mark.parametrize("variant", VARIANTS)
def test_official_rows_are_in_the_published_order_and_agree_with_the_text(variant: Variant) -> None:
    rows = [
        row for split, row in official_rows(variant, scenarios=9, seed=1, row_format="few_shot") if split == "test"
    ]
    assert len(rows) == 4 * 91
    assert [row["sample_id"] for row in rows] == [i // 91 for i in range(4 * 91)]
    for place, row in enumerate(rows):
        answer = row["masked_content"].removeprefix("<extra_id_0> ")
        assert row["sentence"] == row["sentence_masked"].replace("<extra_id_0> .", f"{answer}.")
        description, box = re.fullmatch(r"(.+\.) Box (\d) contains <extra_id_0> \.", row["sentence_masked"]).groups()  # type: ignore[union-attr]
        assert int(box) == place % 7
        assert description.count(". ") == place % 91 // 7
        assert contents_by_text(description)[box] == things_in(answer)
        assert row["numops"] == sum(row["numops_by_op"].values())
        assert row["numops"] == len(re.findall(rf"\bBox {box}\b", description.partition(". ")[2]))


@pytest.mark.parametrize("variant", VARIANTS)
def test_benchmark_files_and_training_rows_have_the_same_scenarios(
    variants: dict[Variant, Splits], variant: Variant
) -> None:
    masked: dict[str, set[str]] = {"train": set(), "dev": set(), "test": set()}
    for split, row in official_rows(variant, scenarios=20, seed=0, row_format="few_shot"):
        masked[split].add(row["sentence_masked"])
    for split, samples in variants[variant].items():
        names = [sample.question.removeprefix("What does ").removesuffix(" contain?") for sample in samples]
        pairs = zip(samples, names, strict=True)
        assert masked[split] == {f"{sample.context} {name} contains <extra_id_0> ." for sample, name in pairs}


def test_the_two_formats_differ_in_what_is_masked_and_how_empty_boxes_are_told() -> None:
    few, t5 = (
        [row for _, row in official_rows("base", scenarios=5, seed=0, row_format=form)]
        for form in ("few_shot", "t5")  # type: ignore[arg-type]
    )
    empty = [i for i, row in enumerate(few) if row["masked_content"] == "<extra_id_0> nothing"]
    assert empty
    assert {t5[i]["masked_content"] for i in empty} == {"<extra_id_0> is empty"}
    full = next(i for i in range(len(few)) if i not in empty)
    assert t5[full]["masked_content"] == few[full]["masked_content"].replace("<extra_id_0>", "<extra_id_0> contains")
    assert "contains nothing" not in "".join(row["sentence"] for row in t5)


def test_the_same_seed_gives_the_same_rows_and_another_gives_others() -> None:
    first, again, other = (
        [row["sentence"] for _, row in official_rows("base", scenarios=3, seed=seed, row_format="t5")]
        for seed in (4, 4, 5)
    )
    assert first == again
    assert first != other


def test_the_command_writes_an_archive_unless_told_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from d2e_sft.cli import run
    from d2e_sft.util.encrypted_zip import member_names, read_encrypted

    run(["data", "boxes", str(tmp_path / "b.zip"), "--scenarios", "20"])
    assert "train.jsonl: 9 scenarios, 819 questions" in capsys.readouterr().out
    assert member_names(tmp_path / "b.zip") == ["train.jsonl", "dev.jsonl", "test.jsonl"]
    run(["data", "boxes", str(tmp_path / "b"), "--scenarios", "20", "--plain"])
    assert (tmp_path / "b" / "dev.jsonl").read_text() == read_encrypted(tmp_path / "b.zip", "dev.jsonl")
