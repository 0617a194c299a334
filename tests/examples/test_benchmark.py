"""A benchmark of a user's own, `--bench module:Class`, is asked, scored and compared like those of the package."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import output_of, refusal_of
from tests.tiny import save_tiny_model

ROOT = Path(__file__).resolve().parents[2]
OWN = "examples.benchmark:Statements"
ROWS = [("1", "true", "in the barn"), ("2", "false", "in the garage"), ("3", "false", "lost")]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(ROOT)
    rows = [
        {"id": name, "passage": "The key is in the barn.", "statement": f"The key is {place}.", "answer": answer}
        for name, answer, place in ROWS
    ]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "a.csv").write_text("id,answer\n1,true\n2,true\n3,false\n")
    (tmp_path / "b.csv").write_text("id,answer\n1,true\n2,false\n3,null\n")
    return tmp_path


def test_a_model_is_asked_and_its_scores_are_read_by_the_comparison(data: Path) -> None:
    model = save_tiny_model(data / "model")
    runs = [str(data / name) for name in ("one", "two")]
    for run in runs:
        output_of("eval", str(model), "--bench", OWN, "--data", str(data), "--out", run)
    scores = json.loads((data / "one/eval/statements/scores.json").read_text())
    assert (scores["system"], scores["counts"]["gold"]) == ("statements", {"true": 1, "false": 2})
    assert "statements" in output_of("compare", *runs)


def test_files_of_predictions_are_scored_and_compared(data: Path) -> None:
    files = [str(data / name) for name in ("a.csv", "b.csv")]
    scores = json.loads(output_of("score", OWN, *files, "--gold", str(data), "--json", "-"))["scores"]
    assert [scores[name]["accuracy"] for name in ("a", "b")] == [pytest.approx(2 / 3)] * 2
    assert [scores[name]["unparsed"]["questions"] for name in ("a", "b")] == [0, 1]
    output_of("score", OWN, files[0], "--gold", str(data), "--out", str(data / "run"))
    assert (data / "run/eval/statements/scores.json").is_file()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("examples.benchmark:Statement", "expected a subclass of LabelBenchmark or Benchmark"),
        ("examples.benchmark:Statment", "Did you mean 'Statement'?"),
        ("no_such_module:Statements", "cannot be imported"),
        ("eval.systems.wiqa.benchmark:Wiqa", "its name is 'wiqa'; expected a name"),
    ],
)
def test_what_is_no_benchmark_is_refused(data: Path, name: str, message: str) -> None:
    for command in (("eval", "MODEL", "--bench", name), ("score", name, str(data / "a.csv"), "--gold", str(data))):
        assert message in " ".join(refusal_of(*command).split())
