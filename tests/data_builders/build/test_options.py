"""Options of datasets and refiner, as KEY=VALUE."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.data.sample import read_samples
from d2e_sft.util.errors import UserError
from data_builders.build.options import BuildOptions
from data_builders.build.run import build


@pytest.mark.parametrize(
    ("datasets", "settings", "message"),
    [
        (["tracy"], [], "unknown dataset 'tracy'.* Did you mean 'tracie'?"),
        ([], [], "no dataset named"),
        (["boxes"], ["boxes.operation=2"], r"unknown option 'boxes\.operation'.* Did you mean 'boxes\.operations'\?"),
        (["tracie"], ["boxes.boxes=2"], "is for dataset 'boxes', which is not built"),
        (["boxes"], ["boxes.boxes"], r"got option 'boxes\.boxes'; expected KEY=VALUE"),
        (["boxes"], ["refine.threshold=2"], "option of refine: threshold: got '2'"),
    ],
)
def test_unknown_names_get_a_suggestion(
    raw: Path, tmp_path: Path, datasets: list[str], settings: list[str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        build(BuildOptions(datasets, tmp_path / "out", raw, settings=settings))


def test_the_refiner_can_be_set(raw: Path, tmp_path: Path) -> None:
    build(BuildOptions(["tracie"], tmp_path / "out", raw, settings=["refine.max_share=1", "refine.threshold=0"]))
    build(
        BuildOptions(["tracie"], tmp_path / "few", raw, settings=["refine.max_share=0.1", "refine.keep_events=false"])
    )

    def words(name: str) -> int:
        return sum(len((s.refined_context or "").split()) for s in read_samples(tmp_path / name / "test.parquet"))

    assert words("few") < words("out")
