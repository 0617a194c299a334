"""Contents of boxes in a text, and whether they are correct: by the official script, and by meaning.

The official rule (`compute_metrics.py` of the paper's repository) takes things in any order, separated by commas or
`and`, without articles. But case, blanks, a second article and the words for an empty box count. It removes `the`
anywhere in the prediction, so `feather` is only correct in the gold's order. The corrected rule compares meanings.
"""

import re
from collections.abc import Sequence

EMPTY = ("nothing", "is empty")
_NEXT_BOX = r",?\s*(?:and\s+)?(?:Box|Container)\s+\w+\s+(?:contains|is)\b"
# In the variant with ambiguous references several things share a noun.
MODIFIERS = ("big", "small", "blue", "green", "red", "yellow")
_MODIFIER = re.compile(f"({'|'.join(MODIFIERS)}) ")
_EMPTY = re.compile(
    r"(?:(?:there|it|the|box|is|are|has|contains|now|currently) )*(?:nothing|empty|none|no (?:item|object|thing)s?)"
    r"(?: at all| left| inside| in it)?"
)
_ARTICLES = re.compile(r"(?:(?:the|an|a)\s+)+")
_VERB = re.compile(r"(?:(?:box|container)\s+\w+\s+)?(?:(?:contains?|holds|has|is)\b\s*)?")


def contents_of(text: str) -> frozenset[str]:
    """Return the things that a text in the gold file's words lists; none if it is `nothing` or `is empty`."""
    text = text.strip().removesuffix(".").strip().removeprefix("contains ").strip()
    if text in EMPTY:
        return frozenset()
    parts = (part.strip().removeprefix("the ").removeprefix("The ").strip() for part in re.split(r",|\band\b", text))
    return frozenset(part for part in parts if part)


def right_officially(prediction: str | None, gold: str, *, t5: bool = False) -> bool:
    """Return whether the official script counts a prediction as correct.

    `t5` is for gold files in the form for fine-tuning T5; others are scored as the script does with `--zero_shot`.
    """
    if prediction is None:
        return False
    predicted, expected = _prepared(prediction, t5), _prepared(gold, t5)
    if predicted == expected or predicted.replace("the", "") == expected.replace(" the", ""):
        return True
    if ("contains " not in expected) if t5 else ("nothing" in expected):
        return False
    things: set[str] = set()
    if "is empty" not in predicted and "nothing" not in predicted:
        parts = re.split(r",? and |, ", predicted.replace("contains ", ""))
        things = {part.replace("the ", "").replace("the", "") for part in parts}
    return things == {part.replace("the ", "") for part in expected.replace("contains ", "").split(" and ")}


def _prepared(text: str, t5: bool) -> str:
    text = text.replace("Container", "Box")
    text = text if t5 else text.strip(".")
    return _MODIFIER.sub(r"\1_", text).strip()


def right(prediction: str | None, gold: str) -> bool:
    """Return whether a prediction names the gold things, or calls an empty box empty (the corrected rule).

    Case, order, articles, repetitions, blanks, punctuation at the end and a verb before (`contains`, `holds`, `is`)
    make no difference; `nothing`, `empty`, `none` and `it has no items` are the same.
    """
    if prediction is None:
        return False
    expected = {_key(thing) for thing in contents_of(gold)}
    predicted = _VERB.sub("", prediction.strip().lower(), count=1).strip(" \t\n.,;:!?\"'")
    is_empty = _EMPTY.fullmatch(predicted) is not None
    if not expected or is_empty:
        return not expected and is_empty
    parts = re.split(r"[,;]|\band\b|&", predicted)
    names = {_key(_ARTICLES.sub("", part.strip(" .\"'"), count=1)) for part in parts}
    # Without the blank, `thecup` is `the cup`; but a thing may begin with these letters, too.
    return {
        thing[3:] if thing.startswith("the") and thing not in expected else thing for thing in names - {""}
    } == expected


def _key(thing: str) -> str:
    return re.sub(r"\s+", "", thing.lower())


def in_words_of_t5(text: str) -> str:
    """Return a reply in the words of the files for fine-tuning T5: with `contains`, or `is empty`."""
    answer = text.strip(". ").removeprefix("contains ")
    return "is empty" if answer in EMPTY else f"contains {answer}"


def read_all(reply: str, boxes: Sequence[str]) -> list[str | None]:
    """Return the reply's contents of each box, at its first mention; None if it has none."""
    return [_about(reply, box) for box in boxes]


def read_one(reply: str, box: str) -> str | None:
    """Return the contents in a reply about one box: after the box's name, else its first line."""
    contents = _about(reply, box)
    if contents is not None:
        return contents
    lines = [line.strip() for line in reply.splitlines() if line.strip()]
    # A reply about another box is no answer about this one.
    return None if not lines or re.match(r"(?:Box|Container)\s+\w+\s+(?:contains|is)\b", lines[0]) else lines[0]


def _about(reply: str, box: str) -> str | None:
    number = re.escape(box).replace(r"\ ", r"\s+")
    match = re.search(rf"\b{number}\s+(contains|is (?:now )?empty)\b(.*?)(?={_NEXT_BOX}|\.|\n|$)", reply)
    if match is None:
        return None
    return match[1] if match[1].startswith("is") else match[2].strip().rstrip(",") or None
