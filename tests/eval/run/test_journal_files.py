"""Answers on disk: what a kill may do to them, and what it may not."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from eval.run.journal import Journal, PassFiles, SessionHeader, read_journals
from eval.run.task import Answer

HEADER = SessionHeader({"model": "m"}, "transformers", {"torch": "2"})
ANSWERS = [Answer(3, 'The answer is: "rain"\n'), Answer(0, "Ärger \ud800", truncated=True), Answer(7, "")]


def write(folder: Path, answers: list[Answer], process: int = 0) -> Path:
    path = PassFiles(folder, "predictions").partial(process)
    with closing(Journal(path, HEADER)) as journal:
        for answer in answers:
            journal.append(answer)
    return path


def test_answers_are_read_as_they_were_written_and_each_at_once(tmp_path: Path) -> None:
    files = PassFiles(tmp_path, "predictions")
    with closing(Journal(files.partial(), HEADER)) as journal:
        for count, answer in enumerate(ANSWERS, start=1):
            journal.append(answer)
            assert len(read_journals(files, 8).answers) == count
    earlier = read_journals(files, 8)
    assert earlier.sessions == [HEADER]
    assert earlier.answers == {answer.index: answer for answer in ANSWERS}
    assert not earlier.cut_off


@pytest.mark.parametrize("bytes_lost", range(1, 12))
def test_a_line_that_a_kill_cut_off_is_decoded_again_and_the_others_are_kept(tmp_path: Path, bytes_lost: int) -> None:
    path, files = write(tmp_path, ANSWERS), PassFiles(tmp_path, "predictions")
    path.write_bytes(path.read_bytes()[:-bytes_lost])
    earlier = read_journals(files, 8)
    assert earlier.answers.keys() == {3, 0}
    assert earlier.cut_off == [path]
    write(tmp_path, [Answer(7, "again")])
    earlier = read_journals(files, 8)
    assert [earlier.answers[i].output for i in (3, 0, 7)] == [ANSWERS[0].output, ANSWERS[1].output, "again"]
    assert not earlier.cut_off, "the cut line must not run into the next session's first"


def test_the_files_of_all_processes_are_read(tmp_path: Path) -> None:
    for process, answer in enumerate(ANSWERS):
        write(tmp_path, [answer], process)
    write(tmp_path, [Answer(1, "eleventh")], 10)
    (tmp_path / "predictions.partial.txt.jsonl").write_text("not ours")
    assert len(PassFiles(tmp_path, "predictions").partials()) == 4
    assert read_journals(PassFiles(tmp_path, "predictions"), 8).answers.keys() == {0, 1, 3, 7}


@pytest.mark.parametrize(
    "line",
    [
        b"{}", b"[1]", b"7", b"null", b'"fingerprint"', b'{"index": 1}', b"\xff", b'{"index": 8, "output": "x"}',
        b'{"index": -1, "output": "x"}', b'{"index": "1", "output": "x"}', b'{"index": 1, "output": 2}', b"",
    ],
)  # fmt: skip
def test_a_damaged_line_that_no_kill_left_is_named(tmp_path: Path, line: bytes) -> None:
    path = write(tmp_path, ANSWERS[:1])
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(UserError, match=r"predictions.partial.jsonl, line 3: neither a session nor an answer"):
        read_journals(PassFiles(tmp_path, "predictions"), 8)


def test_answers_need_the_line_of_their_session(tmp_path: Path) -> None:
    path = write(tmp_path, ANSWERS)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1:]))
    with pytest.raises(UserError, match="line 1: neither a session nor an answer"):
        read_journals(PassFiles(tmp_path, "predictions"), 8)
