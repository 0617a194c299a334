"""`d2e data wiqa-questions` on two small graphs."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

from tests.command import output_of, refusal_of
from tests.eval.systems.files import save
from tests.eval.systems.wiqa_files import GRAPH, OTHER


def test_the_command_writes_questions_with_explanations(tmp_path: Path) -> None:
    file = save(tmp_path / "graphs.jsonl", [GRAPH, OTHER])
    (tmp_path / "a.json").write_text(json.dumps({"7": {"x": 0, "y": 1, "d_x": "more"}}))
    out = tmp_path / "new" / "questions.jsonl"
    call = ("data", "wiqa-questions", "--graphs", file, "--out", out, "--no-effect", 2)
    printed = output_of(*call, "--alignments", tmp_path / "a.json")
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    explained = [row for row in rows if "explanation" in row]
    assert f"{len(rows)} questions of 2 graphs" in printed
    assert explained
    assert {row["metadata"]["graph_id"] for row in explained} == {"7"}
    for row in explained:
        answer = {"RESULTS_IN": "more", "NOT_RESULTS_IN": "less"}[row["explanation"]["de"]]
        assert answer == row["question"]["answer_label"]
    plain = {row["metadata"]["ques_id"] for row in rows}
    balanced = output_of(*call, "--no-effect", 4, "--balanced")
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    counts = Counter((row["metadata"]["question_type"], row["question"]["answer_label"]) for row in rows)
    each = counts["INPARA_EFFECT", "more"]
    assert each > 0
    assert counts == {
        **{(kind, answer): each for kind in ("INPARA_EFFECT", "EXOGENOUS_EFFECT") for answer in ("more", "less")},
        ("OUTOFPARA_DISTRACTOR", "no_effect"): 2 * each,
    }
    assert re.search(rf"in-paragraph +{each} +{each} +0\n", balanced)
    assert len(plain) > len(rows)
    assert "--balanced: some type or answer has no question" in refusal_of(*call, "--no-effect", 0, "--balanced")
    error = refusal_of("data", "wiqa-questions", "--graphs", tmp_path / "none.jsonl", "--out", out)
    assert "none.jsonl: cannot be read" in error
