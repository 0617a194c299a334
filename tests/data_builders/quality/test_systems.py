"""`d2e data stats SYSTEM`: counts of a system's raw files beside those of its paper, on files written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from d2e_sft.util.encrypted_zip import write_encrypted
from tests.command import output_of, refusal_of


def counted(raw: Path, system: str) -> dict[str, list[str]]:
    """Row → cells of all parts of the printed table; the parts of a wide one are joined."""
    rows: dict[str, list[str]] = {}
    printed = output_of("data", "stats", system, "--raw", raw)
    for line in filter(str.strip, printed.splitlines()):
        name, *cells = (part.strip() for part in line.split("  ") if part.strip())
        rows.setdefault(name, []).extend(cells)
    return rows


def test_crepe_counts_blocks_after_the_start(tmp_path: Path) -> None:
    step = {"type": "step", "step": "Boil two eggs"}
    event = {"type": "event", "event": "The pot is hot", "change": "more likely"}
    blocks = [[step], [step, event], [step]]  # the first is the start, which may be typed
    (tmp_path / "crepe").mkdir()
    (tmp_path / "crepe/data_dev_v2.json").write_text(json.dumps({"1": {"goal": "Cook", "steps": blocks}}))
    rows = counted(tmp_path, "crepe")
    assert rows["procedures"][:4] == ["42", "1", "141", "–"]
    assert (rows["steps"][1], rows["event changes"][1], rows["tokens of a step"][1]) == ("2", "1", "3.0")


def test_wiqa_counts_questions_by_type_hops_and_answer(tmp_path: Path) -> None:
    def question(kind: str, nodes: int, answer: str) -> dict[str, Any]:
        about = {"para_id": "7", "graph_id": "3", "question_type": kind, "path_len": nodes}
        return {"question": {"answer_label": answer}, "metadata": about}

    lines = [question("INPARA_EFFECT", 2, "more"), question("EXOGENOUS_EFFECT", 4, "less")]
    lines.append(question("OUTOFPARA_DISTRACTOR", 0, "no_effect"))
    (tmp_path / "wiqa").mkdir()
    (tmp_path / "wiqa/test.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "wiqa/para_id.prompt.topic.partition.tsv").write_text("para_id\ttopic\npropara_7\train\n")
    rows = counted(tmp_path, "wiqa")
    expected = {"topics": 1, "paragraphs": 1, "influence graphs": 1, "questions": 3, "in-para": 1, "out-of-para": 1}
    expected |= {"no effect": 1, "one hop": 1, "two hops": 0, "three hops": 1, "answer no effect": 1}
    assert {name: int(rows[name][5]) for name in expected} == expected
    assert rows["questions"][4] == "3,993"


def test_boxes_counts_the_files_of_each_archive(tmp_path: Path) -> None:
    (tmp_path / "boxes").mkdir()
    lines = [json.dumps({"sample_id": number // 7}) for number in range(14)]
    write_encrypted(tmp_path / "boxes/mine.zip", {"test.jsonl": lines, "train.jsonl": lines[:7]})
    rows = counted(tmp_path, "boxes")
    assert [cell for cell in rows["mine"] if cell != "–"] == ["1", "2", "7", "14"]
    assert rows["NumOps"].count("20,790") == 1


def test_no_files_and_other_files_are_refused(tmp_path: Path) -> None:
    assert "has no file of openpi2" in refusal_of("data", "stats", "openpi2", "--raw", tmp_path)
    (tmp_path / "crepe").mkdir()
    (tmp_path / "crepe/data_dev_v2.json").write_text("[1]")
    assert "not the published files of crepe" in refusal_of("data", "stats", "crepe", "--raw", tmp_path)
    assert "a system is counted by itself" in refusal_of("data", "stats", "crepe", tmp_path)
