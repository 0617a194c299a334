"""What each single-choice source makes of a few raw rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from data_builders.raw.reader import BadRows
from tests.data_builders.raw_rows import COSMOSQA_INSTRUCTIONS, SOCIALIQA
from tests.data_builders.reading import read, replace, steps, use_substitute

INSTRUCTIONS = "cosmosqa/subtask024_cosmosqa_answer_generation.json"


def test_cosmosqa_sorts_questions_by_the_letters_if(raw: Path) -> None:
    relations = [sample.relation for sample in read(raw, "cosmosqa")["test"].rows]
    assert relations == ["causal", "causal", "counterfactual", "causal"]  # "different" is seen, a capital "If" is not


def test_cosmosqa_can_look_for_the_word_if(raw: Path) -> None:
    relations = [sample.relation for sample in read(raw, "cosmosqa", ("test",), "rule=word")["test"].rows]
    assert relations == ["causal", "causal", "causal", "counterfactual"]


def test_cosmosqa_keeps_repeated_questions_under_ids_of_their_own(raw: Path) -> None:
    samples = read(raw, "cosmosqa")["test"].rows
    assert [sample.id for sample in samples] == [f"cosmosqa-test-{line}" for line in (2, 4, 6, 7)]
    assert [sample.answers[0] for sample in samples[:2]] == ["He was late .", 'He said , " come " .']


def test_cosmosqa_trains_on_new_stories_with_four_different_answers(raw: Path) -> None:
    train = read(raw, "cosmosqa")["train"]
    assert [sample.question for sample in train.rows] == ["What if Max had stayed ?"]
    assert list(steps(train).values()) == [(4, 3), (3, 2), (2, 1)]


def test_cosmosqa_draws_wrong_answers_from_other_stories(raw: Path) -> None:
    use_substitute(raw, "cosmosqa/train.csv", INSTRUCTIONS)
    places = set()
    for seed in range(5):
        train = read(raw, "cosmosqa", seed=seed)["train"]
        assert steps(train) == {"contexts of the test": (21, 20), "no blank answer": (20, 20)}
        for sample in train.rows:
            number = int(sample.question.split()[-2])
            assert sample.answers == [f"It is {number} ."]
            others = {int(option.split()[-2]) // 2 for option in sample.options if option != sample.answers[0]}
            assert number // 2 not in others
            places.add(sample.options.index(sample.answers[0]))
    assert places == {0, 1, 2, 3}


def test_cosmosqa_draw_depends_on_the_seed_only(raw: Path) -> None:
    use_substitute(raw, "cosmosqa/train.csv", INSTRUCTIONS)
    drawn = [[s.options for s in read(raw, "cosmosqa", seed=seed)["train"].rows] for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_cosmosqa_says_when_there_is_too_little_to_draw_from(raw: Path) -> None:
    few = {**COSMOSQA_INSTRUCTIONS, "Instances": [{"input": "Context: A . \nQuestion: B ?", "output": ["C ."]}]}
    (raw / "cosmosqa/train.csv").unlink()
    (raw / INSTRUCTIONS).write_text(json.dumps(few))
    with pytest.raises(UserError, match="its 1 questions have too few answers to draw wrong ones from"):
        read(raw, "cosmosqa")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (",1\r\n", ",4\r\n", r"line 2: label: got '4'; expected one of \['0', '1', '2', '3'\]"),
        ("Why did Tom leave ?", "", "line 2: question: got ''; expected text"),
        (",label", ",lable", "line 1: column 'label' is missing; found 'id', 'context'"),
        ("t-3,I met Jo .", "t-3,I met, Jo .", "line 7: got 9 columns; expected 8"),
    ],
)
def test_cosmosqa_names_file_line_and_field_of_a_bad_row(raw: Path, old: str, new: str, message: str) -> None:
    replace(raw / "cosmosqa/valid.csv", old, new)
    with pytest.raises(UserError, match=rf"valid\.csv, {message}"):
        read(raw, "cosmosqa", ("test",))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Context: I met", "Story: I met", "item 1: input: got .* expected 'Context: <story>'"),
        ('"output": ["Nothing ."]', '"output": []', r"item 1: output: got \[\]; expected at least one answer"),
        ('"Instances"', '"Rows"', "line 1: the JSON object has Title, Definition, Rows, Examples; expected the key"),
    ],
)
def test_cosmosqa_names_what_is_wrong_in_the_rendering(raw: Path, old: str, new: str, message: str) -> None:
    use_substitute(raw, "cosmosqa/train.csv", INSTRUCTIONS)
    replace(raw / INSTRUCTIONS, old, new)
    with pytest.raises(UserError, match=message):
        read(raw, "cosmosqa")


def test_wiqa_makes_sentences_of_the_steps(raw: Path) -> None:
    samples = read(raw, "wiqa")["test"].rows
    assert {sample.context for sample in samples} == {"Clouds gather. It rains."}
    assert [sample.answers for sample in samples] == [["more"], ["no effect"]]
    assert samples[0].meta["question_type"] == "INPARA_EFFECT"
    assert samples[0].meta["path_len"] == 2


def test_wiqa_trains_on_no_paragraph_of_the_test(raw: Path) -> None:
    train = read(raw, "wiqa")["train"]
    assert [sample.context for sample in train.rows] == ["Wind blows."]
    assert steps(train) == {"paragraphs of the test": (3, 1)}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"answer_label": "more"', '"answer_label": "no effect"', "question.answer_label: got 'no effect'; expected"),
        ('"para_steps": ["Clouds gather", "It rains.", ""]', '"para_steps": [""]', "question.para_steps: got"),
        ('"path_len": 2', '"path_len": "2"', "metadata.path_len: got '2'; expected a whole number"),
        ('"metadata"', '"meta"', "metadata: missing; expected an object"),
        ('"stem": "suppose', '"stem_": "suppose', "question.stem: missing; expected text"),
        ('"para_id"', '"paragraph"', "metadata.para_id: missing; expected text"),
        ('"answer_label": "more"', '"label": "more"', "question.answer_label: missing; expected one of"),
        ('"INPARA_EFFECT"', '"INPARA"', "metadata.question_type: got 'INPARA'; expected one of"),
    ],
)
def test_wiqa_names_file_line_and_field_of_a_bad_row(raw: Path, old: str, new: str, message: str) -> None:
    replace(raw / "wiqa/test.jsonl", old, new)
    with pytest.raises(UserError, match=rf"test\.jsonl, line 1: {message}"):
        read(raw, "wiqa", ("test",))


def test_socialiqa_offers_a_repeated_answer_once(raw: Path) -> None:
    first, second = read(raw, "socialiqa")["test"].rows
    assert (first.options, first.answers) == (["ice", "joy", "rain"], ["ice"])
    assert (second.options, second.answers) == (["glad", "sad"], ["glad"])


def test_alphanli_shows_the_observations_in_the_context_only(raw: Path) -> None:
    (sample,) = read(raw, "alphanli")["test"].rows
    assert sample.context == "First observation: Ann ran.\nSecond observation: Ann fell."
    assert "Ann" not in sample.question
    assert sample.answers == ["She slipped."]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ("1\n", r"dev-labels\.lst: has no label on line 2, where .*dev\.jsonl has a row \(1 labels, 2 rows\)"),
        ("1\n2\n3\n", r"dev\.jsonl: has no row on line 3, where .*dev-labels\.lst has a label \(3 labels, 2 rows\)"),
        ("1\n4\n", r"dev-labels\.lst, line 2: label: got '4'; expected one of \['1', '2', '3'\]"),
        ("", r"dev-labels\.lst: the file is empty"),
    ],
)
def test_labels_must_fit_their_rows(raw: Path, labels: str, message: str) -> None:
    (raw / "ood/socialiqa/dev-labels.lst").write_text(labels)
    with pytest.raises(UserError, match=message):
        read(raw, "socialiqa")


@pytest.mark.parametrize(
    ("rows", "labels", "message"),
    [
        ("ROW\n\nROW\n", "1\n2\n", r"dev\.jsonl: has no row on line 2"),
        ("ROW\nROW\n", "1\n\n2\n", r"dev-labels\.lst: has no label on line 2"),
        ("<html>", "1\n2\n", r"dev\.jsonl: holds a web page"),
        ("version https://git-lfs.github.com/spec/v1\n", "1\n", r"dev\.jsonl: holds a Git LFS pointer"),
        ("ROW\nROW\n", "404: Not Found", r"dev-labels\.lst: holds a server's error message"),
        ("ROW\nROW\n", "1\r2\r", r"dev-labels\.lst, line 1: a carriage return"),
    ],
)
def test_of_two_files_the_one_at_fault_is_blamed(raw: Path, rows: str, labels: str, message: str) -> None:
    row = json.dumps(SOCIALIQA[0])
    (raw / "ood/socialiqa/dev.jsonl").write_text(rows.replace("ROW", row))
    (raw / "ood/socialiqa/dev-labels.lst").write_text(labels)
    with pytest.raises(UserError, match=message):
        read(raw, "socialiqa")


@pytest.mark.parametrize("bad", [b"caf\xe9", b"{", b'{"context": 3}'])
def test_a_bad_row_costs_itself_only_and_is_recorded_once_in_its_folder(raw: Path, bad: bytes) -> None:
    path = raw / "ood/socialiqa/dev.jsonl"
    path.write_bytes(bad + b"\n" + path.read_bytes().splitlines(keepends=True)[1])
    aside = BadRows(skip=True)
    (sample,) = read(raw, "socialiqa", bad=aside)["test"].rows
    assert sample.meta["line"] == 2
    (entry,) = aside.entries
    assert (entry["file"], entry["line"]) == ("ood/socialiqa/dev.jsonl", 1)


def test_a_bad_label_costs_its_row_and_is_recorded_once(raw: Path) -> None:
    (raw / "ood/socialiqa/dev-labels.lst").write_bytes(b"\xe9\n3\n")
    aside = BadRows(skip=True)
    assert len(read(raw, "socialiqa", bad=aside)["test"].rows) == 1
    assert [entry["file"] for entry in aside.entries] == ["ood/socialiqa/dev-labels.lst"]


def test_alphanli_refuses_two_equal_hypotheses(raw: Path) -> None:
    replace(raw / "ood/alphanli/dev.jsonl", "She slept.", "She slipped.")
    with pytest.raises(UserError, match=r"dev\.jsonl, line 1: hyp2: got 'She slipped\.'; expected a hypothesis"):
        read(raw, "alphanli")


def test_storycloze_reads_the_file_that_the_user_has(raw: Path) -> None:
    (sample,) = read(raw, "storycloze")["test"].rows
    assert sample.context == "Ann ran. It was icy. She slipped, badly. She fell."
    assert (sample.options, sample.answers) == (["She flew.", "She cried."], ["She cried."])


def test_storycloze_says_where_to_get_the_file(raw: Path) -> None:
    (raw / "ood/storycloze/cloze_test_val__spring2016.csv").unlink()
    with pytest.raises(UserError) as error:
        read(raw, "storycloze")
    assert "cs.rochester.edu/nlp/rocstories" in str(error.value.remedy)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (",2\r\n", ",3\r\n", r"line 2: AnswerRightEnding: got '3'; expected one of \['1', '2'\]"),
        ("She flew.", "She cried.", "line 2: RandomFifthSentenceQuiz2: got 'She cried.'; expected an ending that"),
        ("AnswerRightEnding", "Answer", "line 1: column 'AnswerRightEnding' is missing"),
    ],
)
def test_storycloze_names_file_line_and_field_of_a_bad_row(raw: Path, old: str, new: str, message: str) -> None:
    replace(raw / "ood/storycloze/cloze_test_val__spring2016.csv", old, new)
    with pytest.raises(UserError, match=rf"cloze_test_val__spring2016\.csv, {message}"):
        read(raw, "storycloze")
