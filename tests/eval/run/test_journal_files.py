"""Answers on disk: what a kill may do to them, and what it may not."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from eval.run.journal_files import Answer, JournalWriter, PassFiles, SessionHeader, read_journal

HEADER = SessionHeader({"model": "m"}, "transformers", {"torch": "2"})
ANSWERS = [Answer(3, 'The answer is: "rain"\n'), Answer(0, "Ärger \ud800", truncated=True), Answer(7, "")]


def write(folder: Path, answers: list[Answer], process: int = 0) -> Path:
    path = PassFiles(folder, "predictions").partial(process)
    with closing(JournalWriter(path, HEADER)) as writer:
        writer.write(answers)
    return path


def test_answers_are_read_as_they_were_written(tmp_path: Path) -> None:
    write(tmp_path, ANSWERS)
    journal = read_journal(PassFiles(tmp_path, "predictions"))
    assert journal.sessions == [HEADER]
    assert journal.answers == {answer.index: answer for answer in ANSWERS}
    assert not journal.cut_off


def test_an_answer_is_on_the_disk_before_the_next_is_written(tmp_path: Path) -> None:
    with closing(JournalWriter(PassFiles(tmp_path, "predictions").partial(), HEADER)) as writer:
        for count, answer in enumerate(ANSWERS, start=1):
            writer.write([answer])
            assert len(read_journal(PassFiles(tmp_path, "predictions")).answers) == count


@pytest.mark.parametrize("bytes_lost", range(1, 12))
def test_a_line_that_a_kill_cut_off_is_decoded_again_and_the_others_are_kept(tmp_path: Path, bytes_lost: int) -> None:
    path = write(tmp_path, ANSWERS)
    path.write_bytes(path.read_bytes()[:-bytes_lost])
    journal = read_journal(PassFiles(tmp_path, "predictions"))
    assert journal.answers.keys() == {3, 0}
    assert journal.cut_off == [path]
    write(tmp_path, [Answer(7, "again")])
    journal = read_journal(PassFiles(tmp_path, "predictions"))
    assert [journal.answers[i].output for i in (3, 0, 7)] == [ANSWERS[0].output, ANSWERS[1].output, "again"]
    assert not journal.cut_off, "the cut line must not run into the next session's first"


def test_the_files_of_all_processes_are_read(tmp_path: Path) -> None:
    for process, answer in enumerate(ANSWERS):
        write(tmp_path, [answer], process)
    write(tmp_path, [Answer(1, "eleventh")], 10)
    (tmp_path / "predictions.partial.txt.jsonl").write_text("not ours")
    assert len(PassFiles(tmp_path, "predictions").partials()) == 4
    assert read_journal(PassFiles(tmp_path, "predictions")).answers.keys() == {0, 1, 3, 7}


@pytest.mark.parametrize(
    "line",
    [
        b"{}", b"[1]", b"7", b"null", b'"fingerprint"', b'{"index": 1}', b"\xff", b'{"index": 1, "output": "x"}',
        b'{"fingerprint": null, "engine": "", "environment": {}}',
        b'{"index": 1, "output": "x", "check": "0123456789abcdef"}', b'{"index": 1, "output": "x", "check": null}',
    ],
)  # fmt: skip
def test_a_damaged_line_that_no_kill_left_is_named(tmp_path: Path, line: bytes) -> None:
    path = write(tmp_path, ANSWERS[:1])
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(UserError, match=r"predictions.partial.jsonl, line 3: neither a session nor an answer"):
        read_journal(PassFiles(tmp_path, "predictions"))


def two_sessions(folder: Path) -> bytes:
    write(folder, ANSWERS[:2])
    return write(folder, [ANSWERS[2], Answer(5, "\u2028 last", scores=[(-1.5, 2), (-0.25, 1)])]).read_bytes()


def test_no_flipped_bit_gives_a_wrong_answer(tmp_path: Path) -> None:
    content = two_sessions(tmp_path)
    files = PassFiles(tmp_path, "predictions")
    whole = read_journal(files)
    refused = 0
    for place in range(8 * len(content)):
        changed = bytearray(content)
        changed[place // 8] ^= 1 << place % 8
        files.partial().write_bytes(changed)
        try:
            found = read_journal(files)
        except UserError as error:
            refused += f"{files.partial()}, line " in error.message
        else:
            assert found.cut_off == [files.partial()], "nothing else than the last line's end may pass"
            assert found.answers == {index: whole.answers[index] for index in (3, 0, 7)}
    assert refused == 8 * len(content) - 8


@pytest.mark.parametrize("gone", range(5))
def test_a_line_that_is_missing_from_the_middle_is_named(tmp_path: Path, gone: int) -> None:
    lines = two_sessions(tmp_path).splitlines(keepends=True)
    files = PassFiles(tmp_path, "predictions")
    files.partial().write_bytes(b"".join(line for number, line in enumerate(lines) if number != gone))
    if gone == 2:  # the end of a session: as if it had been killed before
        assert read_journal(files).answers.keys() == {3, 7, 5}
        return
    with pytest.raises(UserError, match=f"line {gone + 1}: neither a session nor an answer"):
        read_journal(files)
