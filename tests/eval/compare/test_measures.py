"""Measures of systems and of lm-eval: what counts, their files, results side by side, and which one the runs share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from d2e_sft.util.errors import UserError
from eval.compare.compare import Comparison, Score, compare_measures, compare_results
from eval.compare.lm_eval import holds_samples, read_samples_folder
from eval.compare.runs import load_measured, reference_first
from eval.compare.verdicts import measures_latex, text_of, verdicts
from eval.score.measures import measure, shares
from eval.score.statistics import holm, paired_average
from tests.eval.compare.rows import accuracy, save_result


def test_items_that_count_nothing_are_left_out_and_a_measure_of_nothing_is_none() -> None:
    [found] = measure("changed", "share", "states", "g", {"1": (1, 2), "2": (0, 0)})
    assert found.counts == {"1": (1, 2)}
    assert found.interval.mean == 0.5
    assert measure("changed", "share", "states", "g", {"1": (0, 0)}) == []
    assert shares("accuracy", "questions", "g", {}) == []


RNG = np.random.default_rng(0)
A, B, C = (list((RNG.random(80) < p).astype(float)) for p in (0.4, 0.6, 0.7))


def scores(comparison: Comparison) -> dict[str, list[Score]]:
    return {block.name[0]: list(block.scores.values()) for block in comparison.blocks("measures", "measure", "unit")}


def test_the_headline_is_corrected_for_results_and_the_rest_for_results_and_measures() -> None:
    def measures(values: list[float]) -> list:
        return [one for name in ("accuracy", "second", "third") for one in accuracy(values, name=name)]

    found = compare_measures("wiqa", {"a": measures(A), "b": measures(B), "c": measures(C)})
    plain = [paired_average([A], [other]) for other in (B, C)]
    for name, times in (("accuracy", 1), ("second", 2)):
        changes = [score.change for score in scores(found)[name][1:]]
        assert [change.mean for change in changes] == pytest.approx([change.mean for change in plain])
        expected = holm([change.p_value for change in plain] * times)[:2]
        assert [change.adjusted_p for change in changes] == pytest.approx(expected, abs=0.03)
    (row, *_) = found.to_json()["scores"]
    assert (row["measure"], row["unit"], row["run"], row["mean"]) == ("accuracy", "questions", "a", np.mean(A))


def test_items_are_paired_by_their_ids_and_not_by_their_order() -> None:
    [measure] = accuracy(B)
    turned = measure.model_copy(update={"counts": dict(reversed(measure.counts.items()))})
    one, other = (compare_measures("wiqa", {"a": accuracy(A), "b": [own]}) for own in (measure, turned))
    assert scores(one) == scores(other)


def test_measures_that_not_all_have_are_named() -> None:
    found = compare_measures("wiqa", {"a": [*accuracy(A), *accuracy(A, name="more")], "b": accuracy(B)})
    assert (list(scores(found)), found.left_out) == (["accuracy"], ("more",))
    shorter = accuracy(B[:5], name="more")  # a later measure may be of fewer items, as a correlation that is undefined
    found = compare_measures("wiqa", {"a": [*accuracy(A), *accuracy(A, name="more")], "b": [*accuracy(B), *shorter]})
    assert found.left_out == ("more",)


RIGHT = [1.0] * 30 + [0.0] * 10
WRONG = [1.0] * 10 + [0.0] * 30
FOUND = compare_measures("wiqa", {"a_1": accuracy(WRONG), "b & c": accuracy(RIGHT)})


def test_a_measure_is_a_block_and_a_verdict_follows() -> None:
    text = text_of(FOUND)
    for part in ("accuracy (40)", "a_1    25.0 [", "b & c  75.0 [", "+50.0 ["):
        assert part in text
    (verdict,) = verdicts(FOUND)
    assert verdict.startswith("b & c scores higher than a_1: accuracy +50.0 points [")
    assert verdict.endswith("p <0.001, 40 questions.")
    undecided = compare_measures("wiqa", {"a": accuracy(RIGHT), "b": accuracy([*RIGHT[1:], 1.0])})
    assert verdicts(undecided)[0].startswith("b against a is not decided: ")
    alone = text_of(compare_measures("wiqa", {"a": accuracy(RIGHT)}))
    assert not {"Δ", "against"} & set(alone.split()), "one result has scores, but no differences"


def test_latex_marks_the_best_and_the_significant() -> None:
    lines = measures_latex(FOUND).splitlines()
    [row] = [line for line in lines if line.startswith(r"b \& c &")]
    assert r"\textbf{75.0}\textsuperscript{\dag} {\scriptsize {[}58.8, 87.3]}" in row
    [first] = [line for line in lines if line.startswith(r"a\_1 &")]
    assert r"\textbf" not in first
    equal = compare_measures("wiqa", {"a": accuracy(RIGHT), "b": accuracy(RIGHT)})
    assert r"\textbf" not in measures_latex(equal)


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    values = {"sft": [1, 0, 0], "d2e": [1, 1, 0]}
    return [save_result(tmp_path / name, accuracy(right)) for name, right in values.items()]


def test_the_only_system_that_all_runs_share_is_taken(runs: list[Path]) -> None:
    save_result(runs[0].parent / "sft2", accuracy([1, 0, 0]), bench="crepe")
    loaded = load_measured(runs)
    assert [(run.label, run.bench) for run in loaded] == [("sft", "wiqa"), ("d2e", "wiqa")]
    assert scores(compare_results(loaded))["accuracy"][1].change.mean == pytest.approx(1 / 3)
    assert [run.label for run in reference_first(loaded, "d2e")] == ["d2e", "sft"]


def test_several_shared_ones_must_be_chosen_from(runs: list[Path], tmp_path: Path) -> None:
    for run in runs:
        save_result(run, accuracy([1, 1, 1]), bench="wiqa-paragraph=no")
    loaded = load_measured(runs, "wiqa-paragraph=no")
    assert loaded[0].measures[0].interval.mean == 1
    variants = load_measured([runs[0] / "eval" / "wiqa", runs[0] / "eval" / "wiqa-paragraph=no"])
    assert [run.label for run in variants] == ["wiqa", "wiqa-paragraph=no"], "folders of results"


def test_runs_without_a_shared_system_are_left_to_the_reader_of_rows(runs: list[Path], tmp_path: Path) -> None:
    other = save_result(tmp_path / "other", accuracy([1]), bench="crepe")
    assert load_measured([runs[0], other]) is None


TIME = "2026-11-23T21-00-00.123456"


def sample(number: int, *, hashed: str = "t", task_filter: str = "none", **metrics: Any) -> dict[str, Any]:
    return {
        "doc_id": number, "doc": {"question": f"Q{number}"}, "target": "a", "arguments": {"gen_args_0": {}},
        "resps": [["a"]], "filtered_resps": ["a"], "filter": task_filter, "metrics": list(metrics),
        "doc_hash": f"d{number}", "prompt_hash": "p", "target_hash": hashed, **metrics,
    }  # fmt: skip


def save(folder: Path, tasks: dict[str, list[dict[str, Any]]], results: dict[str, Any], time: str = TIME) -> Path:
    model = folder / "org__model"
    model.mkdir(parents=True, exist_ok=True)
    for task, rows in tasks.items():
        (model / f"samples_{task}_{time}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (model / f"results_{time}.json").write_text(json.dumps({"results": results, "model_name": "org/model"}))
    return folder


def arc(right: list[int], **more: Any) -> list[dict[str, Any]]:
    return [sample(n, acc=float(value), acc_norm=1.0, **more) for n, value in enumerate(right)]


def test_each_task_and_metric_of_the_last_time_is_a_measure_and_tasks_are_pooled_first(tmp_path: Path) -> None:
    save(tmp_path / "a", {"arc_easy": arc([0, 0])}, {}, time="2026-01-01T00-00-00.0")
    tasks = {"arc_easy": arc([1, 0, 0, 1]), "arc_challenge": arc([0, 1])}
    folder = save(tmp_path / "a", tasks, {"arc_easy": {"acc,none": 0.5}, "arc_challenge": {"acc,none": 0.5}})
    assert holds_samples(folder)
    measures, told = read_samples_folder(folder)
    found = {one.name: one.interval.mean for one in measures}
    assert next(iter(found)) == "2 tasks, acc"
    assert (found["2 tasks, acc"], found["arc_easy, acc"], found["arc_challenge, acc_norm"]) == (0.5, 0.5, 1)
    assert told == {"system": "lm-eval", "model_name": "org/model"}


def test_two_folders_are_compared_document_by_document(tmp_path: Path) -> None:
    one = save(tmp_path / "sft", {"arc_easy": arc([1, 0, 0, 0])}, {})
    other = save(tmp_path / "d2e", {"arc_easy": arc([1, 1, 1, 0])}, {})
    runs = load_measured([one, other])
    (_, score) = scores(compare_results(runs))["arc_easy, acc"]
    assert (score.rows, score.change.mean) == (4, 0.5)


def test_a_metric_that_is_no_share_is_left_out_and_named(tmp_path: Path) -> None:
    def bleu(**more: float) -> list[dict[str, Any]]:
        return [sample(n, bleu_max=10.0 * n, bleu_diff=-n / 10, **more) for n in range(4)]

    one, other = (save(tmp_path / name, {"truthfulqa": bleu(bleu_acc=1.0)}, {}) for name in ("sft", "d2e"))
    found = compare_results(load_measured([one, other]))
    assert list(scores(found)) == ["truthfulqa, bleu_acc"]
    assert found.left_out == ("truthfulqa, bleu_max", "truthfulqa, bleu_diff")
    assert "from 0 to 1: truthfulqa, bleu_max, truthfulqa, bleu_diff." in text_of(found)
    with pytest.raises(UserError, match="bleu_max; truthfulqa, bleu_diff: expected a metric from 0 to 1"):
        read_samples_folder(save(tmp_path / "none", {"truthfulqa": bleu()}, {}))


def test_a_metric_that_is_no_mean_of_documents_is_left_out(tmp_path: Path) -> None:
    rows = [sample(n, exact_match=1.0, perplexity=2.0, f1=[0, 1], task_filter="strict") for n in range(3)]
    results = {"gsm8k": {"exact_match,strict": 1.0, "perplexity,strict": 7.4}}
    measures, _ = read_samples_folder(save(tmp_path, {"gsm8k": rows}, results))
    assert [one.name for one in measures] == ["gsm8k, exact_match (strict)"]
