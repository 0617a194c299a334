"""Rows of the published Boxes files."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from data_builders.boxes.official import official_rows
from data_builders.boxes.scenarios import VARIANTS, Variant
from tests.data_builders.boxes.simulation import contents_by_text, scenarios, things_in


@pytest.mark.parametrize("variant", VARIANTS)
def test_official_rows_are_in_the_published_order_and_agree_with_the_text(variant: Variant) -> None:
    rows = [
        row for split, row in official_rows(variant, scenarios=9, seed=1, row_format="few_shot") if split == "test"
    ]
    assert len(rows) == 4 * 91
    numbers = [row["sample_id"] for row in rows]
    assert numbers == sorted(numbers)
    assert set(Counter(numbers).values()) == {91}
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
def test_benchmark_files_and_training_rows_have_the_same_scenarios(variant: Variant) -> None:
    masked: dict[str, set[str]] = {"train": set(), "dev": set(), "test": set()}
    numbers = set()
    for split, row in official_rows(variant, scenarios=20, seed=0, row_format="few_shot"):
        masked[split].add(row["sentence_masked"])
        numbers.add((row["sample_id"], split))
    assert sorted(number for number, _ in numbers) == list(range(20))  # each is of one split
    for split, samples in scenarios(20, variant).items():
        names = [sample.question.removeprefix("What does ").removesuffix(" contain?") for sample in samples]
        pairs = zip(samples, names, strict=True)
        assert masked[split] == {f"{sample.context} {name} contains <extra_id_0> ." for sample, name in pairs}


@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_in_the_form_for_t5_are_those_of_the_files(variant: Variant) -> None:
    files: dict[str, list[tuple[str, str]]] = {"train": [], "dev": [], "test": []}
    for split, row in official_rows(variant, scenarios=9, seed=0, row_format="t5"):
        files[split].append((row["sentence_masked"], row["masked_content"]))
    for split, samples in scenarios(9, variant, "t5").items():
        found = []
        for sample in samples:
            assert sample.conversation is not None
            (turn,) = sample.conversation.messages(sample.context)
            found.append((turn["content"], sample.answers[0]))
            (imagined,) = sample.conversation.messages("")
            assert turn["content"] == f"{sample.context} {imagined['content']}"
        assert found == files[split]
