"""What each source makes of a few raw rows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from d2e_sft.data.sample import EventSample, read_samples
from d2e_sft.util.errors import UserError
from data_builders.build.options import BuildOptions
from data_builders.build.run import Result, build
from data_builders.sources.cider import one_line_a_turn


def _build(raw: Path, name: str, *, seed: int = 0, skip_bad: bool = False) -> tuple[Result, list[EventSample]]:
    out = raw.parent / "out"
    result = build(BuildOptions([name], out, raw, seed, skip_bad))
    return result, [sample for path in result.files if path.suffix == ".parquet" for sample in read_samples(path)]


def _replace(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text(encoding="utf-8").replace(old, new, 1), encoding="utf-8")


def test_tracie_keeps_one_row_of_each_event_pair_with_even_labels(raw: Path) -> None:
    _, samples = _build(raw, "tracie")
    test = [sample for sample in samples if sample.split == "test"]
    assert len({sample.context for sample in test}) == len(test) == 10
    assert Counter(sample.answers[0] for sample in test) == {"positive": 5, "negative": 5}


def test_tracie_draw_depends_on_the_seed_only(raw: Path) -> None:
    drawn = {seed: [s.id for s in _build(raw, "tracie", seed=seed)[1]] for seed in (0, 1)}
    assert drawn[0] == [s.id for s in _build(raw, "tracie", seed=0)[1]]
    assert drawn[0] != drawn[1]


def test_tracie_groups_with_one_label_do_not_unbalance_the_rest(raw: Path) -> None:
    path = raw / "tracie/iid/tracie_test.txt"
    lines = path.read_text(encoding="utf-8").splitlines()
    fixed = [line for line in lines[:8] if line.endswith("positive")]  # two events that can only be positive
    path.write_text("\n".join(fixed + lines[8:]) + "\n", encoding="utf-8")
    _, samples = _build(raw, "tracie")
    assert Counter(s.answers[0] for s in samples if s.split == "test") == {"positive": 5, "negative": 5}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "answer: positive",
            "answer: maybe",
            r"line 1: answer: got 'maybe'; expected one of \['positive', 'negative'\]",
        ),
        ("answer: positive", "answer: ", r"line 1: answer: got ''"),
        ("\tanswer", " answer", r"line 1: row: got 'event: "),
        (" starts before ", " meets ", r"line 1: event: got .* expected '<event> starts\|ends before\|after <event>'"),
        (" story: ", " tale: ", r"line 1: event: got .* expected 'event: <hypothesis> story: <story>'"),
    ],
)
def test_tracie_names_file_line_field_and_value_of_a_bad_row(raw: Path, old: str, new: str, message: str) -> None:
    _replace(raw / "tracie/iid/tracie_test.txt", old, new)
    with pytest.raises(UserError, match=rf"tracie_test\.txt, {message}"):
        _build(raw, "tracie")


@pytest.mark.parametrize("end", ["", "\r"])
def test_tracie_rows_that_run_into_each_other_are_bad(raw: Path, end: str) -> None:
    _replace(raw / "tracie/iid/tracie_test.txt", "answer: positive\n", f"answer: positive{end}")
    with pytest.raises(UserError, match=r"tracie_test\.txt, line 1: "):
        _build(raw, "tracie")
    assert _build(raw, "tracie", skip_bad=True)[0].bad_rows == 1


def test_tracie_rows_that_ran_into_each_other_without_their_tab_are_bad(raw: Path) -> None:
    _replace(raw / "tracie/iid/tracie_test.txt", "\tanswer: positive\n", " answer: positive")
    with pytest.raises(UserError, match=r"line 1: event: got .* expected one row a line"):
        _build(raw, "tracie")


def test_ecare_drops_repeats_and_test_premises_from_train(raw: Path) -> None:
    result, samples = _build(raw, "ecare")
    assert [s.context for s in samples if s.split == "train"] == ["The road was wet."]
    steps = result.splits["ecare", "train"].filters
    assert [(step.rows_in, step.rows_out) for step in steps] == [(3, 2), (2, 1)]


def test_ecare_never_shows_the_explanation(raw: Path) -> None:
    _, samples = _build(raw, "ecare")
    assert not any("Never to be seen" in sample.model_dump_json() for sample in samples)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"label": 0', '"label": 2', r"line 1: label: got 2; expected 0 \(hypothesis1\) or 1"),
        ('"label": 0', '"label": true', "line 1: label: got True"),
        ('"hypothesis1": "It had rained."', '"hypothesis1": " "', "line 1: hypothesis1: got ' '; expected text"),
        (
            '"It had rained."',
            '"Nobody came."',
            "line 1: hypothesis2: got 'Nobody came.'; expected a statement that differs",
        ),
        ('"premise"', '"premisse"', "line 1: premise: missing; expected text"),
        ('"cause"', '"why"', r"line 1: ask-for: got 'why'; expected one of \['cause', 'effect'\]"),
        ("}", "", "line 1: not a JSON object"),
    ],
)
def test_ecare_names_file_line_field_and_value_of_a_bad_row(raw: Path, old: str, new: str, message: str) -> None:
    _replace(raw / "ecare/dev_full.jsonl", old, new)
    with pytest.raises(UserError, match=rf"dev_full\.jsonl, {message}"):
        _build(raw, "ecare")


def test_mctaco_groups_candidates_and_keeps_quotes(raw: Path) -> None:
    _, samples = _build(raw, "mctaco")
    (test,) = [s for s in samples if s.split == "test"]
    assert test.options == ["she spoke", 'she said "stop"', "she left"]
    assert test.answers == ["she spoke", 'she said "stop"']


def test_mctaco_offers_a_repeated_candidate_once(raw: Path) -> None:
    _, samples = _build(raw, "mctaco")
    (train,) = [s for s in samples if s.split == "train"]
    assert train.options == ["it was built", "it fell down"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("\tyes\t", "\tperhaps\t", r"line 1: label: got 'perhaps'; expected one of \['yes', 'no'\]"),
        ("it was built", "", "line 1: answer: got ''; expected text that is not empty"),
        ("\tEvent Ordering", "", "line 1: got 4 tab-separated columns; expected 5"),
        ("Event Ordering", "Event Order", "line 1: category: got 'Event Order'"),
        ("\tyes\t", "\tno\t", "line 1: label: got 'no' on line 1, 'yes' on line 2 for the candidate 'it was built'"),
    ],
)
def test_mctaco_names_file_line_field_and_value_of_a_bad_row(raw: Path, old: str, new: str, message: str) -> None:
    _replace(raw / "mctaco/dev_3783.tsv", old, new)
    with pytest.raises(UserError, match=rf"dev_3783\.tsv, {message}"):
        _build(raw, "mctaco")


def test_mctaco_drops_every_candidate_whose_labels_contradict_each_other(raw: Path) -> None:
    _replace(raw / "mctaco/test_9442.tsv", "she left\tno", "she spoke\tno")
    result, samples = _build(raw, "mctaco", skip_bad=True)
    (test,) = [s for s in samples if s.split == "test"]
    assert test.options == ['she said "stop"']
    assert result.bad_rows == 2


def test_cider_puts_each_turn_on_its_line() -> None:
    text = "A: Well .    that is it .    B: Yes .    \n* *"
    assert one_line_a_turn(text) == "A: Well . that is it .\nB: Yes . * *"


def test_cider_makes_half_of_each_relation_negative(raw: Path) -> None:
    for seed in range(8):
        _, samples = _build(raw, "cider", seed=seed)
        negatives = Counter(s.meta["cider_relation"] for s in samples if s.answers == ["negative"])
        assert len(samples) == 7
        assert negatives == {"Causes": 1, "Before": 1, "Simutaneous": 1}


def test_cider_never_calls_an_annotated_pair_false(raw: Path) -> None:
    # talk-2 has no negative to offer: its Causes pair is annotated both ways, all its spans are related.
    for seed in range(8):
        _, samples = _build(raw, "cider", seed=seed)
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
    _replace(raw / "cider/cider_main.json", '"tail": "cooked"', '"tale": "cooked"')
    text = (raw / "cider/cider_main.json").read_text(encoding="utf-8")
    line = text[: text.index('"id": "talk-2"')].count("\n")  # the brace stands one line above the id
    with pytest.raises(UserError, match=rf"cider_main\.json, line {line}: triplets\.0\.tail: missing"):
        _build(raw, "cider")


def test_cider_cut_off_in_the_middle_is_an_error_even_when_bad_rows_are_skipped(raw: Path) -> None:
    path = raw / "cider/cider_main.json"
    path.write_text(path.read_text(encoding="utf-8")[:-40], encoding="utf-8")
    with pytest.raises(UserError, match=r"cider_main\.json, line \d+: the JSON array ends or breaks here"):
        _build(raw, "cider", skip_bad=True)


def test_cider_skips_a_repeated_dialogue_id(raw: Path) -> None:
    _replace(raw / "cider/cider_main.json", "talk-2", "talk-1")
    result, _ = _build(raw, "cider", skip_bad=True)
    assert result.bad_rows == 1


def test_a_source_reads_utf8_with_a_byte_order_mark_and_windows_line_ends(raw: Path) -> None:
    text = "event: Zoë läuft starts before it rains story: Zoë läuft. It rains.\tanswer: positive\r\n"
    (raw / "tracie/iid/tracie_train.txt").write_bytes(b"\xef\xbb\xbf" + text.encode())
    _, samples = _build(raw, "tracie")
    (train,) = [s for s in samples if s.split == "train"]
    assert train.question.startswith("Zoë läuft")
    assert train.answers == ["positive"]
