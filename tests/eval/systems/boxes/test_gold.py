"""The published files, whole and damaged."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from d2e_sft.util.encrypted_zip import write_encrypted
from d2e_sft.util.errors import UserError
from data_builders.boxes.official import official_rows
from eval.systems.boxes.gold import balanced, read_questions, states
from tests.eval.systems.boxes.rows import MOVED, ROWS, START
from tests.eval.systems.files import save


def test_questions_know_the_start_and_what_changed(tmp_path: Path) -> None:
    questions = read_questions(save(tmp_path / "test.jsonl", ROWS), split="test")
    assert [question.box for question in questions] == ["Box 0", "Box 1", "Box 2"] * 2
    assert [question.changed for question in questions] == [False] * 3 + [True] * 3
    assert questions[4].contents == {"pen"}
    assert [len(state) for state in states(questions)] == [3, 3]
    assert [group[0].description for group in states(questions)] == [START, MOVED]


@pytest.mark.parametrize("variant", ["base", "altforms", "move_contents", "ambiref"])
@pytest.mark.parametrize("form", ["few_shot", "t5"])
def test_generated_files_are_read_in_every_wording(tmp_path: Path, variant: str, form: str) -> None:
    drawn = official_rows(variant, scenarios=9, seed=0, row_format=form)  # type: ignore[arg-type]
    rows = [row for split, row in drawn if split == "train"]
    questions = read_questions(save(tmp_path / "train.jsonl", rows), split="train")
    assert len(questions) == len(rows) == 4 * 91
    assert all(len(state) == 7 for state in states(questions))
    assert {question.form for question in questions} == {form}
    for question, row in zip(questions, rows, strict=True):
        assert question.numops == row["numops"]
        if question.numops == 0:
            assert not question.changed


def test_a_balanced_subsample_has_states_of_every_number_of_operations(tmp_path: Path) -> None:
    rows = [row for split, row in official_rows("base", scenarios=20, seed=0, row_format="t5") if split == "test"]
    everything = states(read_questions(save(tmp_path / "test.jsonl", rows), split="test"))
    there = Counter(numops for group in everything for numops in {question.numops for question in group})
    chosen = balanced(everything, 3, seed=0)
    kept = Counter(numops for group in chosen for numops in {question.numops for question in group})
    assert all(kept[numops] >= min(3, count) for numops, count in there.items())
    places = [everything.index(group) for group in chosen]
    assert places == sorted(set(places))
    assert len(chosen) <= 3 * len(there)
    assert balanced(everything, 3, seed=0) == chosen != balanced(everything, 3, seed=1)
    assert balanced(everything, 10**6, seed=0) == everything


def test_a_split_is_found_in_folders_and_archives(tmp_path: Path) -> None:
    save(tmp_path / "plain" / "test-subsample.jsonl", ROWS)
    write_encrypted(tmp_path / "a.zip", {"x/test.jsonl": [json.dumps(row) for row in ROWS], "x/train.jsonl": ["{}"]})
    for path in (tmp_path / "plain", tmp_path / "a.zip"):
        assert len(read_questions(path, split="test")) == 6
    with pytest.raises(UserError, match="name begins with 'dev'; found none"):
        read_questions(tmp_path / "a.zip", split="dev")
    write_encrypted(tmp_path / "b.zip", {"x/test.jsonl": [], "y/test.jsonl": []})
    with pytest.raises(UserError, match=r"found several: x/test\.jsonl, y/test\.jsonl"):
        read_questions(tmp_path / "b.zip", split="test")


def test_the_published_format_is_read_whole(published_raw: Path) -> None:
    path = published_raw / "boxes" / "boxes-regenerated.zip"
    if not path.is_file():
        pytest.skip(f"no {path}")
    with pytest.raises(UserError, match="found several"):
        read_questions(path, split="test")
    counts = {"train": (990, 1), "dev": (220, 2), "few_shot_boxes_nso_exp2_max3_move_contents/test": (990, 1)}
    for split, (scenarios, states_each) in counts.items():
        questions = read_questions(path, split=split)
        assert len(questions) == scenarios * states_each * 7
        assert len(states(questions)) == scenarios * states_each
        assert all(question.numops or not question.changed for question in questions)
