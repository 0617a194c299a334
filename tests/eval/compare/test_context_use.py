"""What the context is worth, by hand-worked cases, and its table in `d2e compare`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from eval.compare.compare import compare_runs
from eval.compare.context_use import context_use
from eval.compare.runs import load_runs
from eval.compare.tables import context_table
from eval.pages.report.page import render_page
from eval.score.predictions import Prediction
from eval.score.statistics import holm
from tests.factories import make_run, prediction, write_recorded


def run_with(folder: Path, rows: list[Prediction], without: list[Prediction]) -> Path:
    run = make_run(folder, rows)
    write_recorded(without, run / "eval" / "mini" / "without_context.jsonl")
    return run


def keyed(rows: list[Prediction]) -> dict[tuple[str, str], Prediction]:
    return {(row.dataset, row.id): row for row in rows}


def test_what_the_context_adds_and_what_stays_the_same() -> None:
    rows = [prediction(n, n < 6) for n in range(8)]  # right and wrong are the two labels of nli
    without = [prediction(n, n < 4) for n in range(8)]
    use = context_use([rows], keyed(without))
    assert (use.without.mean, use.gain.mean, use.same) == (0.5, 0.25, 0.75)


def test_an_average_weighs_groups_alike_and_outputs_without_an_answer_are_not_the_same() -> None:
    one, other = [prediction(n, True) for n in range(2)], [prediction(10 + n, False) for n in range(6)]
    use = context_use([one, other], keyed([prediction(n, False) for n in range(2)] + other))
    assert (use.without.mean, use.gain.mean, use.same) == (0.0, 0.5, 0.5)
    silent = prediction(1, False).model_copy(update={"answer": [], "extraction": "none"})
    assert context_use([[silent]], keyed([silent])).same == 0


def test_a_sample_without_a_context_is_its_own_counterpart(tmp_path: Path) -> None:
    bare = prediction(1, True).model_copy(update={"context": " "})
    assert context_use([[bare]], {}).same == 1
    run = run_with(tmp_path / "run", [bare, prediction(2, True)], [prediction(2, True)])
    assert compare_runs(load_runs([run])).rows[0].context_use[0] is not None


def test_the_table_and_the_report_have_only_runs_that_were_asked_without(tmp_path: Path) -> None:
    rows = [prediction(n, n < 30) for n in range(40)]
    plain = make_run(tmp_path / "plain", rows)
    asked = run_with(tmp_path / "asked", rows, [prediction(n, n < 10) for n in range(40)])
    compared = compare_runs(load_runs([plain, asked]))
    assert compared.rows[0].context_use[0] is None
    [row, *_] = context_table(compared).rows()
    assert row[0] == "asked"
    assert row[1].startswith("25.0 [")
    assert row[2].startswith("+50.0 [")
    assert row[2].endswith("*")
    assert row[3] == "50.0"
    assert json.loads(json.dumps(compared.to_json()))["rows"][0]["context_use"][1]["same"] == 0.5
    assert not context_table(compare_runs(load_runs([plain]))).rows()
    section = render_page(load_runs([plain, asked])).split('<section id="context">')[1].split("</section>")[0]
    assert "<td>asked</td>" in section
    assert "<td>plain</td>" not in section
    assert "+50.0 *" in section
    page = render_page(load_runs([plain]))
    assert 'id="context"' not in page
    assert '"#context"' not in page


def test_its_p_values_are_corrected_for_the_rows(tmp_path: Path) -> None:
    rows = [prediction(n, True) for n in range(12)]
    others = [row.model_copy(update={"dataset": "other"}) for row in rows]
    without = [row if n >= 6 else prediction(n, False) for n, row in enumerate(rows)]
    run = run_with(tmp_path / "run", [*rows, *others], [*without, *others])
    uses = [row.context_use[0] for row in compare_runs(load_runs([run])).rows]
    gains = [use.gain for use in uses if use]
    assert gains[0].p_value == pytest.approx(2 / 64, abs=0.01)  # of 2⁶ signs of six changes, all or none
    assert gains == holm(gains)
    assert gains[0].adjusted_p > 2 * gains[0].p_value  # type: ignore[operator]


def test_a_file_about_other_samples_is_refused(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", [prediction(1, True), prediction(2, True)], [prediction(2, True)])
    message = r"without_context\.jsonl: holds no answer for 1 of 2 samples, such as '(.|\n)*--without-context"
    with pytest.raises(UserError, match=message):
        compare_runs(load_runs([run]))
