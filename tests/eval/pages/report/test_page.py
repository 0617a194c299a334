"""`d2e report`: one page with everything on it, and nothing that a model wrote acts on the page."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from eval.compare.runs import load_measured, load_runs
from eval.pages.report.page import render_page
from tests.command import output_of
from tests.eval.compare.rows import accuracy, save_result
from tests.eval.pages.report.test_samples import data_of, without_scripts
from tests.factories import choice, make_run, prediction

HISTORY = [
    {"step": step, "loss": 2.0 / step, "ce": 1.5 / step, "kl": 0.5 / step, "tokens_per_second": 100.0 * step}
    for step in (1, 2, 3)
]

ATTACK = "<script>alert('x')</script>"

NAMES = ("base", "sft_$x$", "_d2e")


def three_runs(folder: Path) -> list[Path]:
    """A base model, and two runs of which the second has samples 1 and 2 fixed and sample 3 broken."""
    runs = []
    for name, marks in zip(NAMES, ("1001", "1100", "1110"), strict=True):
        rows = [prediction(n, mark == "1") for n, mark in enumerate(marks)]
        rows.append(choice(9, False, output=f"{ATTACK} {name}"))
        trained = {"recipe": f"model: {name}  # {ATTACK}", "history": HISTORY}
        runs.append(make_run(folder / name, rows, **({} if name == "base" else trained)))
    return runs


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return render_page(load_runs(three_runs(tmp_path_factory.mktemp("runs"))))


def test_what_a_model_or_a_recipe_says_is_escaped(page: str) -> None:
    assert page.count("<script") == page.count("</script") == 2, "the data and the code"
    assert without_scripts(page).count("&lt;script&gt;alert(") == 3 + 2  # three outputs, two recipes
    assert [text for text in data_of(page)["texts"] if ATTACK in text] == [f"{ATTACK} {n}" for n in NAMES]


def test_the_page_loads_nothing_from_elsewhere(page: str) -> None:
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?!["'#])""", page)
    assert not re.search(r"\b(?:fetch|import|XMLHttpRequest)\b\s*\(", page)
    assert not re.search(r"url\((?!#)|@import", page)
    assert "http" not in page


def test_plots_are_well_formed_and_described(page: str) -> None:
    plots = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    assert len(plots) == 1 + 1 + 3  # means; labels; loss, ce and kl, as no accuracy was logged
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

    assert opened(20, 40) == "d2e scores 33.3 points higher than sft (p\u00a0&lt;0.001)."
    assert opened(40, 38) == "d2e scores 3.3 points lower than sft; not decided with 60 samples."
    assert opened(40, 40) == "d2e scores the same as sft; not decided with 60 samples."
    assert opened(40, 20, 50, 58).startswith("all scores 30.0 points higher"), "the largest decided gain leads"
    assert opened(40, 20, 41).startswith("d2e scores 33.3 points lower"), "without a decided gain the second run"
    assert opened(45) == "sft scores 75.0 % on 60 samples."


def test_a_relation_of_several_datasets_has_its_average_and_mcq_its_set_accuracy(tmp_path: Path) -> None:
    sets = [choice(n, False, format="mcq", f1=1.0, set_accuracy=1.0) for n in range(3)]
    page = render_page(load_runs([make_run(tmp_path / "run", [*sets, choice(9, True, dataset="pantry")])]))
    assert "set accuracy</th>" in page
    assert "average, causal (4)</th>" in page
    assert without_scripts(page).count("✗ wrong") == 0, "the right set in another order is right"


def test_the_page_says_the_verdict_and_what_changed(tmp_path: Path) -> None:
    paths = [
        save_result(tmp_path / "sft", [*accuracy([1, 0, 0, 1]), *accuracy([1, 1, 1, 1], name="second")], alpha=0.0),
        save_result(tmp_path / "<b>d2e", [*accuracy([0, 1, 1, 1]), *accuracy([1, 0, 1, 1], name="second")], alpha=0.5),
    ]
    runs = load_measured(paths)
    page = render_page(runs)
    assert "&lt;b&gt;d2e against sft: accuracy +25.0 [" in page
    assert "&lt;b&gt;d2e scores 25.0 points higher in accuracy than sft; not decided with 4 questions." in page
    assert re.findall(r'<span class="large">(.*?)</span>', page) == ["75.0 %", "+25.0", "4"]
    assert page.index('<p class="headline">') < page.index("<svg") < page.index("<h2>Scores</h2>")
    assert "2 better, 1 worse, 1 as before" in page
    assert "<b>d2e" not in page
    items = re.findall(r"<td>(q\d)</td><td.*?>(\S+?)</td>|$", page)
    assert {item for item, _ in items if item} == {"q0", "q1", "q2"}, "those that changed"
    assert "≠ alpha</th><td>0.0</td><td>0.5</td>" in page


def test_its_output_ends_with_a_verdict_for_each_pair(tmp_path: Path) -> None:
    rows = {"base": 0, "sft": 1, "d2e": 2}
    runs = [
        make_run(tmp_path / name, [prediction(n, n % 3 <= place) for n in range(60)]) for name, place in rows.items()
    ]
    out = tmp_path / "p.html"
    lines = output_of("report", *runs, "--out", out).splitlines()
    assert lines[-2].startswith("sft against base: mean +33.3 [")
    assert lines[-1].startswith("d2e against base: mean +66.7 [")
    lines = output_of("report", *runs, "--out", out, "--reference", "sft").splitlines()
    assert lines[-2].startswith("base against sft: mean -33.3 [")
    assert "base against sft: mean -33.3" in out.read_text(encoding="utf-8")
