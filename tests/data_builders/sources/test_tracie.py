"""TRACIE: which raw rows become which samples."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from data_builders.dataset.manifest import describe_split
from data_builders.sources.tracie import without_csv_quotes
from tests.data_builders.reading import build_datasets, read, replace


def test_tracie_keeps_one_row_of_each_event_pair_with_even_labels(raw: Path) -> None:
    _, samples = build_datasets(raw, "tracie")
    test = [sample for sample in samples if sample.split == "test"]
    assert len({sample.context for sample in test}) == len(test) == 10
    assert Counter(sample.answers[0] for sample in test) == {"positive": 5, "negative": 5}


def test_tracie_draw_depends_on_the_seed_only(raw: Path) -> None:
    drawn = {seed: [s.id for s in build_datasets(raw, "tracie", seed=seed)[1]] for seed in (0, 1)}
    assert drawn[0] == [s.id for s in build_datasets(raw, "tracie", seed=0)[1]]
    assert drawn[0] != drawn[1]


def test_tracie_groups_with_one_label_do_not_unbalance_the_rest(raw: Path) -> None:
    path = raw / "tracie/iid/tracie_test.txt"
    lines = path.read_text(encoding="utf-8").splitlines()
    fixed = [line for line in lines[:8] if line.endswith("positive")]  # two events that can only be positive
    path.write_text("\n".join(fixed + lines[8:]) + "\n", encoding="utf-8")
    _, samples = build_datasets(raw, "tracie")
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
    replace(raw / "tracie/iid/tracie_test.txt", old, new)
    with pytest.raises(UserError, match=rf"tracie_test\.txt, {message}"):
        build_datasets(raw, "tracie")


@pytest.mark.parametrize("end", ["", "\r"])
def test_tracie_rows_that_run_into_each_other_are_bad(raw: Path, end: str) -> None:
    replace(raw / "tracie/iid/tracie_test.txt", "answer: positive\n", f"answer: positive{end}")
    with pytest.raises(UserError, match=r"tracie_test\.txt, line 1: "):
        build_datasets(raw, "tracie")
    assert build_datasets(raw, "tracie", skip_bad=True)[0].bad_rows == 1


def test_tracie_rows_that_ran_into_each_other_without_their_tab_are_bad(raw: Path) -> None:
    replace(raw / "tracie/iid/tracie_test.txt", "\tanswer: positive\n", " answer: positive")
    with pytest.raises(UserError, match=r"line 1: event: got .* expected one row a line"):
        build_datasets(raw, "tracie")


def test_a_source_reads_utf8_with_a_byte_order_mark_and_windows_line_ends(raw: Path) -> None:
    text = "event: Zoë läuft starts before it rains story: Zoë läuft. It rains.\tanswer: positive\r\n"
    (raw / "tracie/iid/tracie_train.txt").write_bytes(b"\xef\xbb\xbf" + text.encode())
    _, samples = build_datasets(raw, "tracie")
    (train,) = [s for s in samples if s.split == "train"]
    assert train.question.startswith("Zoë läuft")
    assert train.answers == ["positive"]


def test_tracie_stories_lose_the_quotes_of_csv_and_keep_their_own(raw: Path) -> None:
    story = 'It rained. "So, Ann left." "He heard a ""meow""." She ate her "greens" then!'
    assert without_csv_quotes(story) == 'It rained. So, Ann left. He heard a "meow". She ate her "greens" then!'
    path = raw / "tracie/iid/tracie_test.txt"
    plain, quoted = "early. The rain comes down.", 'early. "The rain, it comes down."'
    path.write_text(path.read_text(encoding="utf-8").replace(plain, quoted), encoding="utf-8")
    test = read(raw, "tracie")["test"]
    assert all("early. The rain, it comes down. Everyone" in sample.context for sample in test.rows)
    assert describe_split(test, 0)["rows_decoded"] == {"CSV quotes": 10}
