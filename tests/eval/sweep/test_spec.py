"""The file of a sweep."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from eval.sweep.spec import read_spec
from tests.eval.fake_sweeps import write_sweep


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("runs: {a: {overides: {}}}", "overides: expected section.key"),
        ("runs: {a: {train.output_dir: x}}", "every training of a sweep has its own folder"),
        ("runs: {a: {evaluations: {'': {alpha: -1}}}}", "greater than or equal to 0"),
        ("runs: {a: {evaluations: {'': {decoder: cda}}}}", "Did you mean 'cad'?"),
        ("runs: {a: {evaluations: {'': {decoder: cad, alpha: 1}}}}", "alpha 1 with the decoder cad"),
        ("axes: {number: [3, 4]}\nprobe: {reference: {number: 3}}", "needs one named seed"),
        ("axes: {seed: [3, 4], way: [sft]}\nprobe: {reference: {way: sfd}}", "way=sfd: expected one of sft"),
        ("axes: {seed: [3, 4]}\nprobe: {reference: {}}", "reference: got {}"),
        ("axes: {seed: [3, 4]}\nrows: x.json", "rows"),
    ],
)
def test_a_file_that_is_not_valid_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UserError, match="not a valid sweep") as error:
        read_spec(write_sweep(tmp_path, text))
    assert said in str(error.value)


def test_a_recipe_or_its_name_is_a_sweep_without_axes(tmp_path: Path) -> None:
    recipe = write_sweep(tmp_path)
    for name in (recipe, "smollm2-135m/d2e"):
        spec = read_spec(name)
        assert (spec.recipe, spec.axes) == (name, {})
