"""What `d2e eval` keeps, what a kill may do to it, and when results are scored again, refused or replaced."""

import json
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.util.errors import UserError
from eval.run.journal import Journal, PassFiles, SessionHeader, read_journals
from eval.run.task import Answer
from tests.command import call, d2e, output_of, refusal_of
from tests.factories import QUICK, bench_rows, evaluate, evaluation, predictions, save_bench, scores_of
from tests.tiny import save_tiny_model


def test_a_finished_evaluation_is_scored_again_not_decoded(world: Path, tmp_path: Path, decoded: list[Any]) -> None:
    assert evaluate(world, tmp_path) == 0
    folder = tmp_path / "eval" / "bench"
    before, scores = (folder / "predictions.jsonl").read_bytes(), scores_of(tmp_path)
    (folder / "scores.json").unlink()
    assert "decoded before, and only scored again" in call(*evaluation(world, tmp_path)).err
    assert len(decoded) == 8
    results = json.loads((folder / "scores.json").read_text())
    relations = Counter(row["relation"] for row in predictions(tmp_path))
    assert {name: own["samples"] for name, own in results["timed"].items()} == relations
    assert 0 < sum(own["seconds"] for own in results["timed"].values()) <= results["seconds"] + 0.01
    assert (folder / "predictions.jsonl").read_bytes() == before
    assert scores_of(tmp_path) == scores
    said = call(*evaluation(world, tmp_path, "--overwrite")).err
    assert all(file in said for file in ("removes", "predictions.jsonl", "scores.json"))
    assert len(decoded) == 16


def test_rows_that_are_tagged_later_are_scored_again_not_decoded(
    world: Path, tmp_path: Path, decoded: list[Any]
) -> None:
    bench, call_again = (
        tmp_path / "tagged",
        ("eval", world / "model", "--bench", tmp_path / "tagged", *QUICK, "--out", tmp_path),
    )
    rows = bench_rows()
    save_bench(bench, rows)
    assert d2e(*call_again) == 0
    tagged = [row.model_copy(update={"subset": "conflict", "habit": ["no"], "meta": {"a": 1}}) for row in rows]
    save_bench(bench, tagged)
    assert "decoded before, and only scored again" in call(*call_again).err
    assert len(decoded) == len(rows)
    assert {row["subset"] for row in predictions(tmp_path, "tagged")} == {"conflict"}
    save_bench(bench, [row.model_copy(update={"question": "And now?"}) for row in tagged])
    assert "the benchmark's rows" in refusal_of(*call_again)


def test_scores_of_a_part_of_the_rows_name_the_cap(world: Path, tmp_path: Path) -> None:
    part = tmp_path / "part.yaml"
    part.write_text(
        f"model: {{name: {world / 'model'}}}\ndata: {{train: {world / 'train.jsonl'}}}\neval: {{max_samples: 1}}"
    )
    assert d2e("train", part, f"train.output_dir={tmp_path / 'run'}", "train.max_steps=1", "d2e.objective=sft") == 0
    rows, drawn = len(bench_rows()), len({(row.relation, row.format) for row in bench_rows()})
    capped = ["eval", tmp_path / "run", "--bench", world / "bench", *QUICK]
    of_all = f"; --max-samples {rows} --overwrite scores all of them"
    assert f"scored {drawn} of {rows} rows (eval.max_samples=1){of_all}\n" in output_of(*capped)
    assert "rows (" not in output_of(*capped, "--max-samples", rows, "--overwrite")
    shown = output_of(*capped, "--max-samples", 2, "--out", tmp_path / "other")
    assert " of 8 rows (--max-samples 2)\n" in shown


OTHERS = {
    "--alpha 0.5": "--alpha: 0.0 → 0.5",
    "--max-new-tokens 7": "--max-new-tokens: 6 → 7",
    "--max-samples 2": "the subset (--max-samples): none → 2 a group, seed 0",
    "--dtype bfloat16": "--dtype: none → bfloat16",
    "--prompt-set other.yaml": "the prompt set: default, sha256",
}


def test_results_of_other_options_are_refused(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wording = load_prompt_set("default").model_dump(exclude_none=True)
    wording["zero_shot"]["qa"]["system"] = "Answer."
    Path("other.yaml").write_text(json.dumps(wording))
    assert evaluate(world, tmp_path) == 0
    before = predictions(tmp_path)
    for arguments, said in OTHERS.items():
        error = refusal_of(*evaluation(world, tmp_path, *arguments.split()))
        assert said in error
        assert "--overwrite" in error
        assert predictions(tmp_path) == before
    assert evaluate(world, tmp_path, "--alpha", 0.5, "--overwrite") == 0
    assert predictions(tmp_path) != before
    assert evaluate(world, tmp_path) == 1


def test_results_of_another_checkpoint_are_refused_whatever_its_name(world: Path, tmp_path: Path) -> None:
    run = save_tiny_model(tmp_path / "run", seed=3)
    common = ("eval", run, "--bench", world / "bench", *QUICK)
    assert d2e(*common) == 0
    assert d2e(*common) == 0, "its own results are no part of a model"
    save_tiny_model(run, seed=4)
    assert "the model: sha256:" in refusal_of(*common)
    assert d2e(*common, "--overwrite") == 0


def test_predictions_of_unknown_origin_are_refused(world: Path, tmp_path: Path) -> None:
    assert evaluate(world, tmp_path) == 0
    (tmp_path / "eval" / "bench" / "predictions.decoding.json").unlink()
    assert "so their model and options are unknown" in refusal_of(*evaluation(world, tmp_path))
    assert evaluate(world, tmp_path, "--overwrite") == 0


def test_damaged_predictions_are_named(world: Path, tmp_path: Path) -> None:
    assert evaluate(world, tmp_path) == 0
    file = tmp_path / "eval" / "bench" / "predictions.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    for content, said in (
        (lines[:-1], "holds 7 predictions; expected 8"),
        ([lines[1], lines[0], *lines[2:]], "line 1: is about 's1' of 'made-up'; expected 's0'"),
        (["{\n", *lines[1:]], "line 1: is not a prediction"),
    ):
        file.write_text("".join(content))
        assert said in refusal_of(*evaluation(world, tmp_path, "--accept-edited"))


def test_a_pass_without_context_is_kept_beside_the_others(world: Path, tmp_path: Path, decoded: list[Any]) -> None:
    assert evaluate(world, tmp_path, "--alpha", 0.5) == 0
    before = scores_of(tmp_path)
    assert "without_context.jsonl" in output_of(*evaluation(world, tmp_path, "--without-context"))
    assert scores_of(tmp_path) == before, "the scores stay those with context"
    blind = predictions(tmp_path, stem="without_context")
    assert [row["id"] for row in blind] == [row["id"] for row in predictions(tmp_path)]
    assert blind[0].keys() == predictions(tmp_path)[0].keys()
    # The same as a benchmark from which the contexts were taken, decoded plainly.
    empty = [row.model_copy(update={"context": ""}) for row in bench_rows()]
    save_bench(tmp_path / "empty", empty)
    assert d2e("eval", world / "model", "--bench", tmp_path / "empty", "--out", tmp_path / "plain", *QUICK) == 0
    assert [r["output"] for r in blind] == [r["output"] for r in predictions(tmp_path / "plain", "empty")]
    assert len(decoded) == 24
    assert evaluate(world, tmp_path, "--without-context") == 0
    assert len(decoded) == 24, "it is scored again, too, without decoding"


def test_a_pass_without_context_goes_with_its_predictions(world: Path, tmp_path: Path) -> None:
    assert evaluate(world, tmp_path) == 0
    other = ("--max-new-tokens", 5)
    error = refusal_of(*evaluation(world, tmp_path, "--without-context", *other))
    assert "predictions.jsonl: was decoded by another model or with other options" in error
    assert evaluate(world, tmp_path, "--without-context") == 0
    assert evaluate(world, tmp_path, *other) == 1
    assert evaluate(world, tmp_path, *other, "--overwrite") == 0
    assert not (tmp_path / "eval" / "bench" / "without_context.jsonl").exists()


def test_changed_predictions_are_refused_until_accepted(world: Path, tmp_path: Path, decoded: list[Any]) -> None:
    assert evaluate(world, tmp_path) == 0
    folder = tmp_path / "eval" / "bench"
    file, record = folder / "predictions.jsonl", folder / "predictions.decoding.json"
    whole = file.read_bytes()
    first, rest = whole.split(b"\n", 1)
    file.write_bytes(json.dumps({**json.loads(first), "output": "Another answer."}).encode() + b"\n" + rest)
    assert "predictions.jsonl: was changed after it was written" in refusal_of(*evaluation(world, tmp_path))
    assert "--accept-edited" in refusal_of("compare", tmp_path, "--bench", "bench")
    assert "warning: " in call("score", "rows", "--predictions", file, "--gold", world / "bench").err
    assert "edited by hand" in call(*evaluation(world, tmp_path, "--accept-edited")).err
    assert predictions(tmp_path)[0]["output"] == "Another answer."
    assert json.loads(record.read_text())["edited"] is True
    assert evaluate(world, tmp_path) == 0, "accepted once, it is what was evaluated"
    assert evaluate(world, tmp_path, "--overwrite") == 0
    assert file.read_bytes() == whole
    assert "edited" not in json.loads(record.read_text())
    assert len(decoded) == 16


@pytest.mark.parametrize(
    "line",
    [
        b"{}", b"[1]", b"7", b"null", b'"fingerprint"', b'{"index": 1}', b"\xff", b'{"index": 8, "output": "x"}',
        b'{"index": -1, "output": "x"}', b'{"index": "1", "output": "x"}', b'{"index": 1, "output": 2}', b"",
    ],
)  # fmt: skip
def test_a_damaged_line_that_no_kill_left_is_named(tmp_path: Path, line: bytes) -> None:
    files = PassFiles(tmp_path, "predictions")
    with closing(Journal(files.partial(), SessionHeader({"model": "m"}, "transformers", {}))) as journal:
        journal.append(Answer(3, "Ärger \ud800"))
    assert read_journals(files, 8).answers == {3: Answer(3, "Ärger \ud800")}
    with files.partial().open("ab") as partial:
        partial.write(line + b"\n")
    with pytest.raises(UserError, match=r"predictions.partial.jsonl, line 3: neither a session nor an answer"):
        read_journals(files, 8)


def test_answers_need_the_line_of_their_session(tmp_path: Path) -> None:
    files = PassFiles(tmp_path, "predictions")
    files.partial().write_text('{"index": 3, "output": "x"}\n')
    with pytest.raises(UserError, match="line 1: neither a session nor an answer"):
        read_journals(files, 8)
