"""CIDER: which raw rows become which samples."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from data_builders.sources.cider import one_line_a_turn
from tests.data_builders.reading import build_datasets, replace


def test_cider_puts_each_turn_on_its_line() -> None:
    text = "A: Well .    that is it .    B: Yes .    \n* *"
    assert one_line_a_turn(text) == "A: Well . that is it .\nB: Yes . * *"


def test_cider_makes_half_of_each_relation_negative(raw: Path) -> None:
    for seed in range(8):
        _, samples = build_datasets(raw, "cider", seed=seed)
        negatives = Counter(s.meta["cider_relation"] for s in samples if s.answers == ["negative"])
        assert len(samples) == 7
        assert negatives == {"Causes": 1, "Before": 1, "Simutaneous": 1}


def test_cider_never_calls_an_annotated_pair_false(raw: Path) -> None:
    # talk-2 has no negative to offer: its Causes pair is annotated both ways, all its spans are related.
    for seed in range(8):
        _, samples = build_datasets(raw, "cider", seed=seed)
        for sample in samples:
            if sample.answers == ["negative"] and sample.meta["cider_relation"] == "Causes":
                assert sample.question == "'lit a candle' causes 'lamp broke'."
            if sample.answers == ["negative"] and sample.meta["cider_relation"] == "Simutaneous":
                assert sample.question in {
                    "'read a book' happens at the same time as 'lit a candle'.",
                    "'read a book' happens at the same time as 'lamp'.",
                    "'read a book' happens at the same time as 'thing'.",
                }


def test_cider_names_the_line_of_a_dialogue_without_a_tail(raw: Path) -> None:
    replace(raw / "cider/cider_main.json", '"tail": "cooked"', '"tale": "cooked"')
    text = (raw / "cider/cider_main.json").read_text(encoding="utf-8")
    line = text[: text.index('"id": "talk-2"')].count("\n")  # the brace stands one line above the id
    with pytest.raises(UserError, match=rf"cider_main\.json, line {line}: triplets\.0\.tail: missing"):
        build_datasets(raw, "cider")


def test_cider_cut_off_in_the_middle_is_an_error_even_when_bad_rows_are_skipped(raw: Path) -> None:
    path = raw / "cider/cider_main.json"
    path.write_text(path.read_text(encoding="utf-8")[:-40], encoding="utf-8")
    with pytest.raises(UserError, match=r"cider_main\.json, line \d+: the JSON ends or breaks here"):
        build_datasets(raw, "cider", skip_bad=True)


def test_cider_skips_a_repeated_dialogue_id(raw: Path) -> None:
    replace(raw / "cider/cider_main.json", "talk-2", "talk-1")
    result, _ = build_datasets(raw, "cider", skip_bad=True)
    assert result.bad_rows == 1
