"""Questions and predictions as files, whole and damaged, and what a text says a box contains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from d2e_sft.util.encrypted_zip import write_encrypted
from d2e_sft.util.errors import UserError
from data_builders.boxes.official import official_rows
from eval.systems.boxes.gold import (
    contents_of,
    read_all,
    read_one,
    read_predictions,
    read_questions,
    right,
    states,
    write_predictions,
)
from tests.eval.systems.boxes.rows import MOVED, ROWS, START, save


def test_questions_know_the_start_and_what_changed(tmp_path: Path) -> None:
    questions = read_questions(save(tmp_path / "test.jsonl", ROWS), split="test")
    assert [question.box for question in questions] == ["Box 0", "Box 1", "Box 2"] * 2
    assert [question.changed for question in questions] == [False] * 3 + [True] * 3
    assert questions[4].initial == {"hat", "pen"}
    assert questions[4].contents == {"pen"}
    assert [len(state) for state in states(questions)] == [3, 3]
    assert [group[0].description for group in states(questions)] == [START, MOVED]


@pytest.mark.parametrize("variant", ["base", "altforms", "move_contents"])
@pytest.mark.parametrize("form", ["few_shot", "t5"])
def test_generated_files_are_read_in_every_wording(tmp_path: Path, variant: str, form: str) -> None:
    drawn = official_rows(variant, scenarios=9, seed=0, row_format=form)  # type: ignore[arg-type]
    rows = [row for split, row in drawn if split == "train"]
    questions = read_questions(save(tmp_path / "train.jsonl", rows), split="train")
    assert len(questions) == len(rows) == 4 * 91
    assert all(len(state) == 7 for state in states(questions))
    for question, row in zip(questions, rows, strict=True):
        assert question.numops == row["numops"]
        if question.numops == 0:
            assert not question.changed


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


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"sentence_masked": "Box 0 contains <extra_id_0> ."}, "expected '… Box N contains"),
        ({"masked_content": "the cup"}, "masked_content is 'the cup'"),
        ({"sentence_masked": "Rain fell. Box 0 contains <extra_id_0> ."}, "does not say what Box 0 holds"),
        ({"sample_id": "x"}, "invalid literal"),
    ],
)
def test_a_damaged_row_is_named_with_its_line(tmp_path: Path, change: dict[str, str], problem: str) -> None:
    path = save(tmp_path / "test.jsonl", [*ROWS[:2], {**ROWS[0], **change}])
    with pytest.raises(UserError) as caught:
        read_questions(path, split="test")
    assert f"{path}, line 3: " in caught.value.message
    assert problem in caught.value.message


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


@pytest.mark.parametrize(
    ("prediction", "gold", "expected"),
    [
        ("the cup and the hat", "the cup and the hat", True),
        ("the hat, the cup.", "the cup and the hat", True),
        ("hat and cup", "the cup and the hat", True),
        ("contains the cup and the hat", "contains the cup and the hat", True),
        ("the cup", "the cup and the hat", False),
        ("the cup and the hat and the pen", "the cup and the hat", False),
        ("the Cup", "the cup", False),  # case is kept
        ("nothing", "nothing", True),
        ("is empty.", "nothing", True),
        ("nothing", "is empty", True),
        ("", "nothing", False),  # an empty box has to be called empty
        ("no objects", "nothing", False),
        ("nothing", "the cup", False),
        (None, "nothing", False),
        ("the sandbox", "the sandbox", True),  # `and` inside a word parts nothing
    ],
)
def test_things_are_compared_as_a_set(prediction: str | None, gold: str, expected: bool) -> None:
    assert right(prediction, gold) is expected


def test_contents_are_split_at_commas_and_ands() -> None:
    assert contents_of("the cup, the hat and the Flav-R-Straw.") == {"cup", "hat", "Flav-R-Straw"}
    assert contents_of("contains nothing.") == frozenset()


def test_a_reply_about_all_boxes_is_taken_apart() -> None:
    reply = (
        "Box 0 contains the cup, the hat and the pen, Box 1 contains nothing, Box 2 is empty, "
        "and Box 10 contains the saw."
    )
    assert read_all(reply, ["Box 0", "Box 1", "Box 2", "Box 10", "Box 3"]) == [
        "the cup, the hat and the pen",
        "nothing",
        "is empty",
        "the saw",
        None,
    ]
    by_lines = "Box 0 contains the cup.\nBox 1 contains the hat.\nBox 0 contains the pen."
    assert read_all(by_lines, ["Box 0", "Box 1"]) == ["the cup", "the hat"]  # the first mention counts


def test_a_reply_about_one_box_may_leave_its_name_out_but_not_name_another() -> None:
    assert read_one("Box 1 contains the hat.", "Box 1") == "the hat"
    assert read_one("the hat\nand more", "Box 1") == "the hat"
    assert read_one("Box 2 contains the hat.", "Box 1") is None
    assert read_one("  \n", "Box 1") is None


def test_a_run_scores_its_own_file_whatever_the_model_wrote(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    questions = read_questions(save(tmp_path / "test.jsonl", ROWS), split="test")
    odd = ["the cup\u2028and more", "a\nb", None, "nothing", "", "the hat"]
    path = tmp_path / "p.jsonl"
    path.write_text(write_predictions(questions, odd), encoding="utf-8")
    assert read_predictions(path, questions) == (questions, odd)
