"""Salience by procedure: the correlations that the authors' figure shows, and the figure itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scipy.stats import pearsonr

from d2e_sft.util.errors import UserError
from eval.systems.openpi2 import salience
from eval.systems.openpi2.analysis.salience_figure import salience_plot
from eval.systems.openpi2.judgements import agreement, read_judges
from tests.eval.systems.files import save
from tests.eval.systems.openpi2.procedures import judged

FIRST = {"water": (5, [5, 2]), "kettle": (3, [4, 0]), "tea": (1, [0, 5])}
# Procedures 1, 2, 9 and 17 in the authors' plotting script.
PLOTTED = {
    "second annotator": (0.9822342150200971, 0.9701332571277855, 0.6181339274290045, 0.33597216268584346),
    "votes": (0.6494838734146026, 0.8378212485037868, -0.3665083330689156, -0.041431188531779684),
    "saliency score": (0.5214263032495494, 0.42871373503653704, 0.6829344150623702, 0.05732144017320891),
}


def test_the_judges_of_the_published_figure_agree_as_in_it(published_raw: Path) -> None:
    folder = published_raw / "openpi2" / "v2.0"
    judges = read_judges(folder / salience.HUMAN, folder / salience.SECOND_HUMAN)
    for name, plotted in PLOTTED.items():
        found = agreement(judges.first, judges.others[name], "global").by_procedure
        assert [found[key] for key in ("1", "2", "9", "17")] == pytest.approx(plotted)
    assert judges.goals["1"] == "Make a Simple Inside Windshield Cleaner"


def test_votes_and_scores_are_judges_if_every_state_has_them(tmp_path: Path) -> None:
    content = judged(FIRST)
    path, none = save(tmp_path / "first.json", content), tmp_path / "none.json"
    assert read_judges(path, none).others == {}, "the states of this file have no votes of their own"
    for votes, state in enumerate(content["1"]["states"]):
        state["votes"] = 10 * votes
    judges = read_judges(save(tmp_path / "voted.json", content), none)
    assert [count.overall for count in judges.others["votes"]["1"]] == [0, 10, 20]
    assert agreement(judges.first, judges.others["votes"], "global").mean == pytest.approx(
        pearsonr([5, 3, 1, 0], [0, 10, 20, 0])[0]
    )
    content["1"]["states"][0]["votes"] = "many"
    with pytest.raises(UserError, match=r"damaged.json: 1.0.overall: got 'many'"):
        read_judges(save(tmp_path / "damaged.json", content), none)


def test_the_figure_has_a_bar_for_each_judge_and_procedure() -> None:
    bars = {"second annotator": [0.5, None, -0.2], "predictions": [1.0, 0.1, 0.3]}
    svg = salience_plot(["Brew Tea", "Nap", "Make a Simple Inside Windshield Cleaner"], bars)
    assert svg == salience_plot(["Brew Tea", "Nap", "Make a Simple Inside Windshield Cleaner"], bars)
    assert all(text in svg for text in ("Brew Tea", "Make a Simple Inside…", "second annotator", "predictions"))
    assert len(re.findall("<pattern", svg)) == 1, "the second judge is hatched"


def test_the_name_of_the_axis_is_within_the_figure_also_beside_wide_numbers() -> None:
    svg = salience_plot(["Make Marshmallow Cream Fudge"] * 20, {"votes": [-0.4] + [1.0] * 19})
    assert "−0.25" in svg
    found = re.search(r'font-size: ([\d.]+)px[^>]* x="([\d.]+)"[^>]*>Pearson', svg)
    assert found is not None
    assert float(found[2]) >= 0.8 * float(found[1])  # the letters stand to the left of x
