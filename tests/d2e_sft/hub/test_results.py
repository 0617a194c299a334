"""What a model card says about results."""

from __future__ import annotations

from pathlib import Path

from d2e_sft.util.files import with_checksums, write_json
from tests.d2e_sft.hub.runs import card_of, make_run, rows_of, section_of, write_scores


def test_results_stand_by_relation_with_their_intervals(run: Path) -> None:
    results = section_of(card_of(run), "Results")
    assert rows_of(results) == [
        ["relation", "dataset", "format", "n", "mean", "exact match", "F1"],
        *[row for row in rows_of(results) if set("".join(row)) <= set("-: ")],
        ["temporal", "tracie", "nli", "20", "50.0 [45.0, 55.0]", "40.0 [35.0, 45.0]", "60.0 [55.0, 65.0]"],
        ["temporal", "mctaco", "mcq", "30", "60.0 [55.0, 65.0]", "50.0 [45.0, 55.0]", "70.0 [65.0, 75.0]"],
        ["temporal", "**average of 2**", "", "50", "55.0", "45.0", "65.0"],
        ["causal", "ecare", "qa", "40", "70.0 [65.0, 75.0]", "60.0 [55.0, 65.0]", "80.0 [75.0, 85.0]"],
        ["all", "**all samples**", "", "90", "60.0 [55.0, 65.0]", "50.0 [45.0, 55.0]", "70.0 [65.0, 75.0]"],
    ]
    assert "zero-shot; prompt set `default`; decoded debiased with α = 0.5; a random subset" in results
    assert "Scored on a subset of mini" in section_of(card_of(run), "Limits")


def test_a_related_systems_benchmark_keeps_its_own_tables(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    folder = run / "eval" / "boxes"
    write_json(folder / "scores.json", with_checksums({"system": "boxes", "alpha": None, "max_samples": None}))
    (folder / "tables.md").write_text("Boxes\n\n| what | accuracy |\n|---|---|\n| all | 12.0 |\n")
    results = section_of(card_of(run), "Results")
    assert "### boxes\n\ndecoded plainly.\n\nBoxes" in results
    assert ["all", "12.0"] in rows_of(results)


def test_answers_by_likelihood_are_marked(run: Path) -> None:
    write_scores(run, answer="likelihood")
    assert "α = 0.5; the likeliest option, nothing generated" in section_of(card_of(run), "Results")


def test_a_run_without_scores_says_so(tmp_path: Path) -> None:
    card = card_of(make_run(tmp_path))
    assert section_of(card, "Results").strip() == "This model has not been scored."
    assert "It has not been scored" in section_of(card, "Limits")
    assert "model-index" not in card
