"""Which charts there are: a radar only where it has three axes."""

from __future__ import annotations

from pathlib import Path

from eval.compare.compare import compare_runs
from eval.compare.runs import load_runs
from eval.pages.report.charts import radars
from eval.score.predictions import Prediction
from tests.eval.fake_runs import choice, make_run


def _bench(*groups: tuple[str, str]) -> list[Prediction]:
    return [
        choice(n, n % 2 == 0, dataset=dataset, relation=relation)
        for n, (dataset, relation) in enumerate([*groups, *groups])
    ]


def test_there_is_a_radar_of_datasets_and_one_of_relations_where_they_have_three_axes(tmp_path: Path) -> None:
    two = _bench(("a", "temporal"), ("b", "causal"))
    three = _bench(("a", "temporal"), ("a", "causal"), ("b", "causal"))
    four = [*three, *(row.model_copy(update={"id": f"x{row.id}"}) for row in _bench(("c", "counterfactual")))]
    captions = []
    for name, rows in {"two": two, "three": three, "four": four}.items():
        captions.append([one.caption for one in radars(compare_runs(load_runs([make_run(tmp_path / name, rows)])))])
    assert [len(own) for own in captions] == [0, 1, 2]
    assert "An axis is a dataset and relation. n = 2 samples an axis." in captions[1][0]
    assert "plain average of its datasets. n = 2 to 4 samples" in captions[2][1]
