"""`d2e report`: facts, curves, plots and error patterns are those of the runs, and no text of a model acts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from d2e_sft.util.errors import UserError
from d2e_sft.util.files import with_checksums, write_json
from eval.compare.compare import compare_measures
from eval.compare.judged import output_digest, read_patterns
from eval.compare.runs import RunResult, load_measured, load_runs
from eval.pages.report.facts import Training, curves, read_training, run_facts
from eval.pages.report.page import render_page
from eval.pages.report.patterns import pattern_table
from eval.pages.report.plots import (
    BarPart,
    ReadingPoint,
    reading_chart,
    reading_figure,
    scores_figure,
    stacked_figure,
)
from eval.score.statistics import Interval
from tests.command import output_of
from tests.eval.compare.rows import accuracy, save_result
from tests.factories import choice, make_run, prediction, story

RECORD = {
    "source": {"train": "t.parquet", "train_sha256": "ab", "rows": 1234, "prompt_set": "p", "prompt_set_sha256": "c"},
    "samples": 900,
    "tokens_sha256": "d",
    "processes": 8,
    "versions": {"torch": "2.13.0", "peft": "0.21.2"},
    "wording": "neutral",
}


def test_facts_are_side_by_side_and_differences_are_marked(tmp_path: Path) -> None:
    rows = [prediction(1, True)]
    same = {"seconds": 5.0, "model": "some/model"}
    by_likelihood = {"answer": "likelihood", "normalise": "tokens", "without_options": 3}
    base = {"torch": "2.9.0", "device": "cpu"}
    paths = [
        make_run(tmp_path / "base", rows, **same, **by_likelihood, environment=base),
        make_run(tmp_path / "d2e", rows, **same, environment={**base, "device": "H200"}),
    ]
    (paths[1] / "data.json").write_text(json.dumps(RECORD))
    runs = load_runs(paths)
    tables = run_facts(runs, [None, None])
    facts = {title: {fact.name: fact for fact in own} for title, own in tables.items()}
    assert facts["Environment of the evaluation"]["torch"].shared
    assert facts["Environment of the evaluation"]["device"].differs
    training = facts["Training and its environment"]
    assert [training[name].values for name in ("processes", "rows in it")] == [("–", "8"), ("–", "1,234")]
    assert not training["torch"].differs, "a run that was not trained has no other version"
    assert training["prompt set"].values == ("–", "neutral"), "the one that worded its rows, and not the one named"
    answers, left_out = (facts["Evaluation"][name].values for name in ("answers", "rows without options left out"))
    assert answers[0] == "the likeliest option (log-probability by tokens)"
    assert answers[1].startswith("100.0 %")
    assert left_out[0] == "3"
    page = render_page(runs)
    assert "≠ device</th><td>cpu</td><td>H200</td>" in page
    assert '<td colspan="2">some/model</td>' in page
    (paths[0] / "data.json").write_text('{"samples": "many"}')
    with pytest.raises(UserError, match=r"base/data\.json: not the record of a training \(.*samples: got 'many'"):
        render_page(runs)


LOG = [{"step": step, "loss": 2.0 / step, "ce": 1.0 / step, "plain_accuracy": step / 4} for step in (1, 2, 3)]


def logged(folder: Path, log: list[dict[str, Any]]) -> Training:
    folder.mkdir(exist_ok=True)
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": log}))
    return read_training(RunResult(folder, folder.name, folder))


def trained(folder: Path, d2e: str, **changes: float) -> Training:
    folder.mkdir()
    (folder / "recipe.yaml").write_text(f"data: {{train: x}}\ntrain: {{output_dir: x}}\nd2e: {{{d2e}}}\n")
    return logged(folder, [{**entry, **{key: entry[key] + more for key, more in changes.items()}} for entry in LOG])


def test_losses_of_other_terms_are_drawn_apart(tmp_path: Path) -> None:
    sft = trained(tmp_path / "sft", "objective: sft")
    d2e, same = (trained(tmp_path / name, "objective: d2e, alpha: 0.5") for name in ("d2e", "same"))
    weak = trained(tmp_path / "weak", "objective: d2e, alpha: 0.2")
    assert [one.terms for one in (sft, d2e, weak)][:2] == ["sft", "d2e, alpha 0.5, kl_weight 1.0"]
    charts = curves(["sft", "d2e", "same", "weak"], [sft, d2e, same, weak])
    found = [str(chart).partition("over training steps: ")[2].partition('"')[0] for chart in charts]
    assert [title.rpartition(" of ")[2] for title in found] == [
        "sft", "d2e, same", "weak",  # loss
        "sft", "d2e, same", "weak",  # cross-entropy
        "sft, d2e, same, weak",  # an accuracy is one, however it was trained
    ]  # fmt: skip
    assert found[1].startswith("Loss (d2e, alpha 0.5")


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"log_history": [1]}'])
def test_a_damaged_trainer_state_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "trainer_state.json").write_text(content)
    with pytest.raises(UserError, match=r"trainer_state\.json"):
        read_training(RunResult(tmp_path, "run", tmp_path))


FOUND = compare_measures("wiqa", {"A": accuracy([1, 1, 0, 1]), "B": accuracy([1, 0, 0, 0])})


def test_dots_of_measures_stand_at_the_scores_with_their_intervals() -> None:
    [axes] = scores_figure(FOUND).axes
    assert [list(container[0].get_xdata()) for container in axes.containers] == [[75], [25]]
    (bar,) = axes.containers[0][2]
    [block] = FOUND.blocks("measures", "measure")
    known = block.score("A", "accuracy")
    assert bar.get_segments()[0][:, 0].tolist() == pytest.approx([100 * known.low, 100 * known.high])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["accuracy\n4 questions"]


def test_the_parts_of_a_stacked_bar_stand_side_by_side_and_fill_it() -> None:
    parts = [BarPart("a", "first", "#cccccc", ""), BarPart("b", "second", "#999999", "")]
    [axes] = stacked_figure({"group": {"one": {"a": 1, "b": 3}, "other": {"a": 2, "b": 0}}}, parts, "percent").axes
    spans = [[(bar.get_x(), bar.get_width()) for bar in container] for container in axes.containers]
    assert spans == [[(0, 25), (0, 100)], [(25, 75), (100, 0)]]


def point(label: str, aligned: float, conflict: float) -> ReadingPoint:
    """A run whose intervals reach 5 points to each side, but not beyond 0 and 100."""
    first, second = (Interval(v, max(0.0, v - 0.05), min(1.0, v + 0.05)) for v in (aligned, conflict))
    return ReadingPoint(label, first, second)


def test_a_point_stands_at_its_aligned_and_conflict_accuracy_with_both_intervals() -> None:
    axes = reading_figure([point("sft", 0.98, 0.46), point("d2e", 1.0, 0.0)], reference=True).axes[0]
    assert axes.get_xlim() == axes.get_ylim() == (0, 100)
    places = [container[0].get_xydata().tolist()[0] for container in axes.containers]
    assert places == [[98.0, 46.0], [100.0, 0.0]]
    across, up = (bars.get_segments()[0] for bars in axes.containers[0][2])
    assert across[:, 0].tolist() == pytest.approx([93.0, 100.0])
    assert up[:, 1].tolist() == pytest.approx([41.0, 51.0])
    diagonal = next(line for line in axes.lines if line.get_linestyle() == "--")
    assert diagonal.get_xydata().tolist() == [[0, 0], [100, 100]]


def test_the_picture_is_read_out_with_its_numbers() -> None:
    svg = str(reading_chart([point("sft", 0.98, 0.46), point("d<2>e", 1.0, 0.0)]))
    ElementTree.fromstring(svg.replace("<svg", '<svg xmlns:xlink="x"', 1))
    assert "reference" not in str(reading_chart([point("alone", 0.98, 0.46)]))
    assert "the reference is sft. sft: conflict 46.0, aligned 98.0; d&lt;2&gt;e: conflict 0.0, aligned 100.0" in svg


NEGLECT, PLACE, OTHER = "neglect_context", "inaccurate_position", "other"


def sealed(errors: list[dict[str, Any]]) -> str:
    """The text of a file of patterns."""
    return json.dumps(with_checksums({"judge": {"backend": "x"}, "estimated_by_rule": True, "errors": errors}))


def run_with(folder: Path, found: dict[str, str] | None, *, by_rule: bool = False, **content: Any) -> Path:
    """A run with one right answer and wrong ones s1, s2 (temporal) and s3 (causal), and their patterns."""
    answers = [prediction(0, True), prediction(1, False), prediction(2, False), choice(3, False)]
    run = make_run(folder, answers)
    if found is not None:
        of_id = {p.id: {"dataset": p.dataset, "output_sha256": output_digest(p)} for p in answers}
        errors = [
            {**of_id[name], "id": name, "pattern": pattern, "reason": f"<i>why {name}</i>"}
            for name, pattern in found.items()
        ]
        judge = {"backend": "rules", "model": None} if by_rule else {"backend": "openai", "model": "judge-1"}
        written = {"judge": judge, "estimated_by_rule": by_rule, "errors": errors, **content}
        write_json(run / "eval/mini/error_patterns.json", with_checksums(written))
    return run


def test_patterns_are_counted_by_relation_and_run(tmp_path: Path) -> None:
    paths = [
        run_with(tmp_path / "a", {"s1": NEGLECT, "s2": NEGLECT, "s3": PLACE}),
        run_with(tmp_path / "b", {"s1": OTHER, "s2": NEGLECT, "s3": NEGLECT}),
    ]
    runs = load_runs(paths)
    table = pattern_table(runs, {run.label: found for run in runs if (found := read_patterns(run))})
    rows = {(relation, row[0]): row[1:] for relation, own in table.blocks() for row in own}
    assert list(rows) == [(relation, run) for relation in ("temporal", "causal", "all") for run in "ab"]
    assert rows["temporal", "a"] == ["2 (66.7 % of 3)", "100.0 % (2)", *["0.0 % (0)"] * 3]
    assert rows["causal", "b"] == ["1 (100.0 % of 1)", "100.0 % (1)", *["0.0 % (0)"] * 3]
    assert rows["all", "b"] == ["3 (75.0 % of 4)", "66.7 % (2)", "0.0 % (0)", "33.3 % (1)", "0.0 % (0)"]
    page = render_page(runs)
    assert "Stacked bars: shares of error patterns by relation of a, b" in page
    assert "a: by the judge judge-1" in page
    assert "do not compare" not in page
    assert "Not known yet" not in page
    assert "<i>why" not in page, "a reason is text"
    assert "why s1" in page
    by_rule = run_with(tmp_path / "rule", {"s1": NEGLECT, "s2": NEGLECT, "s3": PLACE}, by_rule=True)
    page = render_page(load_runs([paths[0], by_rule]))
    assert "rule: estimated by rule" in page
    assert "do not compare them" in page


def test_a_run_without_patterns_is_named_and_the_command_says_how_to_get_them(tmp_path: Path) -> None:
    paths = [run_with(tmp_path / "a", {"s1": NEGLECT, "s2": NEGLECT, "s3": PLACE}), run_with(tmp_path / "b", None)]
    lines = output_of("report", *paths, "--out", tmp_path / "report.html").splitlines()
    page = (tmp_path / "report.html").read_text()
    assert "Not known for b." in page
    assert "d2e errors" not in page, "what is to be done stands in the terminal, not on a page to pass on"
    told = lines.index("without error patterns; to find those of b by rule first:")
    without, find = lines[told + 1 : told + 3]
    assert re.fullmatch(rf"  d2e eval .* --out {tmp_path}/b --without-context", without)
    assert find == f"  d2e errors {tmp_path}/b --bench mini"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "not error patterns"),
        ("[]", "not error patterns"),
        ("{}", "has no checksums"),
        (sealed([{}]), "errors.0.dataset: missing"),
        (sealed([]), "about 0 wrong answers, .* holds 3"),
        (sealed([]).replace("true", "false"), "was changed after it was written"),
    ],
)
def test_a_damaged_file_or_one_of_other_answers_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    run = run_with(tmp_path / "run", {})
    file = run / "eval/mini/error_patterns.json"
    file.write_text(text)
    with pytest.raises(UserError, match=problem) as error:
        render_page(load_runs([run]))
    assert str(file) in str(error.value)
    assert f"d2e errors {run} --bench mini" in str(error.value)
    run = run_with(tmp_path / "right", {"s1": OTHER, "s2": OTHER, "s3": OTHER, "s0": OTHER})
    with pytest.raises(UserError, match=r"1 are in one only or differ, such as 's0' of stories"):
        render_page(load_runs([run]))
    run_with(tmp_path / "other", {"s1": OTHER, "s2": OTHER, "s3": OTHER})
    others = [prediction(n, False, output="The answer is: negative, not positive") for n in (1, 2)]
    run = make_run(tmp_path / "other", [prediction(0, True), *others, choice(3, False)])
    with pytest.raises(UserError, match=r"2 are in one only or differ, such as 's1' of stories"):
        render_page(load_runs([run]))


HISTORY = [
    {"step": step, "loss": 2.0 / step, "ce": 1.5 / step, "kl": 0.5 / step, "tokens_per_second": 100.0 * step}
    for step in (1, 2, 3)
]

NAMES = ("base", "sft_$x$", "_d2e")


def three_runs(folder: Path) -> list[Path]:
    """A base model, and two runs of which the second has samples 1 and 2 fixed and sample 3 broken."""
    runs = []
    for name, marks in zip(NAMES, ("1001", "1100", "1110"), strict=True):
        rows = [prediction(n, mark == "1") for n, mark in enumerate(marks)]
        trained = {"recipe": f"model: {name}", "history": HISTORY}
        runs.append(make_run(folder / name, rows, **({} if name == "base" else trained)))
    return runs


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return render_page(load_runs(three_runs(tmp_path_factory.mktemp("runs"))))


def test_the_page_loads_nothing_from_elsewhere(page: str) -> None:
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?!["'#])""", page)
    assert not re.search(r"\b(?:fetch|import|XMLHttpRequest)\b\s*\(", page)
    assert not re.search(r"url\((?!#)|@import", page)
    assert "http" not in page


def test_plots_are_well_formed_and_described(page: str) -> None:
    plots = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    assert len(plots) == 1 + 3  # means; loss, ce and kl, as no accuracy was logged
    for plot in plots:
        ElementTree.fromstring(plot.replace("<svg", '<svg xmlns:xlink="x"', 1))
        assert re.search(r'aria-label="[^"]*_d2e', plot)
        assert "sft_$x$</text>" in plot  # the dollar signs are no formula
    ids = re.findall(r'<(?:g|path|clipPath|pattern)[^>]* id="([^"]*)"', page)
    assert len(ids) == len(set(ids))


def test_the_headline_says_how_sure_a_difference_is(tmp_path: Path) -> None:
    def opened(*rights: int) -> str:
        runs = [
            make_run(tmp_path / str(rights) / name, [choice(n, n < right) for n in range(60)])
            for name, right in zip(("sft", "d2e", "swapped", "all"), rights, strict=False)
        ]
        return re.findall(r'<p class="headline">(.*?)</p>', render_page(load_runs(runs)))[0]

    assert opened(40, 38) == "d2e against sft is not decided."
    assert opened(40, 20, 50, 58) == "all scores higher than sft.", "the largest decided gain leads"
    assert opened(40, 20, 41) == "d2e scores lower than sft.", "without a decided gain the second run"
    assert opened(45) == "sft scores 75.0 % on 60 samples."


def test_refusals_are_among_the_large_numbers(tmp_path: Path) -> None:
    rows = [story(n, "unanswerable", "unknown" if n < 3 else "barn", gold=["unknown"]) for n in range(4)]
    page = render_page(load_runs([make_run(tmp_path / "run", [*rows, story(9, "aligned", "garage")])]))
    assert "refused of the 4 rows that lack the answer" in page
    assert "75.0 %" in page


def test_the_page_says_the_verdict_and_what_changed(tmp_path: Path) -> None:
    paths = [
        save_result(tmp_path / "sft", [*accuracy([1, 0, 0, 1]), *accuracy([1, 1, 1, 1], name="second")], alpha=0.0),
        save_result(tmp_path / "<b>d2e", [*accuracy([0, 1, 1, 1]), *accuracy([1, 0, 1, 1], name="second")], alpha=0.5),
    ]
    runs = load_measured(paths)
    page = render_page(runs)
    assert "&lt;b&gt;d2e against sft is not decided</b> accuracy +25.0 points [" in page
    assert "&lt;b&gt;d2e against sft is not decided.</p>" in page
    assert re.findall(r'<span class="large">(.*?)</span>', page) == ["75.0 %", "+25.0", "4"]
    assert page.index('<p class="headline">') < page.index("<svg") < page.index("<h2>Scores</h2>")
    assert "2 better, 1 worse, 1 as before" in page
    assert "<b>d2e" not in page
    items = re.findall(r"<td>(q\d)</td><td.*?>(\S+?)</td>|$", page)
    assert {item for item, _ in items if item} == {"q0", "q1", "q2"}, "those that changed"
    assert "≠ alpha</th><td>0.0</td><td>0.5</td>" in page
