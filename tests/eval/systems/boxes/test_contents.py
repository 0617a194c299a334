"""What counts as the same contents, and what is read out of replies."""

from __future__ import annotations

import pytest

from eval.systems.boxes.contents import contents_of, read_all, read_one, right


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
