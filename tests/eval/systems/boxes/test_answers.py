"""What a text says a box contains, and both rules of what is right."""

from __future__ import annotations

import pytest

from eval.systems.boxes.answers import contents_of, in_words_of_t5, read_all, read_one, right, right_officially

# Prediction, gold, right officially, right by the corrected rule; officially: what the script says with --zero_shot.
FEW_SHOT = [
    ("the cup and the hat", "the cup and the hat", True, True),
    ("the hat and the cup", "the cup and the hat", True, True),
    ("the hat, the cup", "the cup and the hat", True, True),
    ("the hat, and the cup", "the cup and the hat", True, True),
    ("hat and cup", "the cup and the hat", True, True),
    ("the cup and the hat.", "the cup and the hat", True, True),
    ("contains the cup", "the cup", True, True),
    ("the cup and the cup", "the cup", True, True),
    ("thecup", "the cup", True, True),
    ("the hat and thecup", "the cup and the hat", True, True),
    ("the cup", "the cup and the hat", False, False),
    ("the cup and the hat and the pen", "the cup and the hat", False, False),
    ("nothing", "nothing", True, True),
    ("nothing.", "nothing", True, True),
    ("nothing", "the cup", False, False),
    ("", "the cup", False, False),
    ("", "nothing", False, False),
    (None, "nothing", False, False),
    ("no objects", "nothing", False, False),
    # Case, punctuation, articles, blanks and the gold file's word for an empty box count officially.
    ("The cup", "the cup", False, True),
    ("THE CUP AND THE HAT", "the cup and the hat", False, True),
    ("the cup,", "the cup", False, True),
    ("the cup!", "the cup", False, True),
    ("the cup. ", "the cup", False, True),
    ("the the cup", "the cup", True, True),
    ("a cup", "the cup", False, True),
    ("the cup,the hat", "the cup and the hat", False, True),
    ("the  cup and the hat", "the cup and the hat", False, True),
    ("contains nothing", "nothing", False, True),
    ("is empty", "nothing", False, True),
    ("Nothing", "nothing", False, True),
    ("Box 3 contains the cup", "the cup", False, True),
    # `the` within a word is taken out of the prediction alone.
    ("the feather", "the feather", True, True),
    ("the feather and the cup", "the cup and the feather", False, True),
    ("the sandbox", "the sandbox", True, True),  # `and` inside a word parts nothing
    ("the hat and the big car", "the big car and the hat", True, True),
    ("the red car", "the big car", False, False),
    ("the car", "the big car", False, False),
    ("the biscuit in Container A", "the biscuit in Box A", True, False),
]
T5 = [
    ("contains the cup and the hat", "contains the cup and the hat", True, True),
    ("contains the hat, the cup", "contains the cup and the hat", True, True),
    ("contains thecup", "contains the cup", True, True),
    ("the cup", "contains the cup", True, True),
    ("contains the cup.", "contains the cup", False, True),  # here no full stop is taken away
    ("is empty", "is empty", True, True),
    ("contains nothing", "is empty", False, True),
    ("nothing", "is empty", False, True),
    ("is empty", "contains the cup", False, False),
]


@pytest.mark.parametrize(
    ("prediction", "gold", "official", "corrected", "t5"),
    [*((*case, False) for case in FEW_SHOT), *((*case, True) for case in T5)],
)
def test_the_two_rules(prediction: str | None, gold: str, official: bool, corrected: bool, t5: bool) -> None:
    assert right_officially(prediction, gold, t5=t5) is official
    assert right(prediction, gold) is corrected


def test_contents_are_split_at_commas_and_ands() -> None:
    assert contents_of("the cup, the hat and the Flav-R-Straw.") == {"cup", "hat", "Flav-R-Straw"}
    assert contents_of("contains nothing.") == frozenset()


def test_replies_are_put_into_the_words_of_the_form_for_fine_tuning() -> None:
    texts = ["nothing.", "is empty", "contains nothing", "the cup.", "contains the cup"]
    assert list(map(in_words_of_t5, texts)) == ["is empty"] * 3 + ["contains the cup"] * 2


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
