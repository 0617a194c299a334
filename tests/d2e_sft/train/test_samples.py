"""Which samples of a file a training uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.config.recipe import Recipe
from d2e_sft.data.sample import write_samples
from d2e_sft.train.samples import RunSamples, choose_samples, probe_groups
from tests.tiny import make_sample, make_samples


def test_datasets_are_chosen_from_in_equal_numbers_in_file_order() -> None:
    samples = [make_sample(n, dataset="large" if n < 8 else "small") for n in range(10)]
    chosen = choose_samples(samples, 4, seed=0)
    assert [sample.dataset for sample in chosen] == ["large", "large", "small", "small"]
    assert [sample.id for sample in chosen] == sorted(sample.id for sample in chosen)
    assert chosen == choose_samples(samples, 4, seed=0)
    assert sum(sample.dataset == "small" for sample in choose_samples(samples, 8, seed=0)) == 2
    assert choose_samples(samples, None, seed=0) == samples


def test_a_run_reads_its_own_files_and_leaves_contexts_out_where_it_is_to(tmp_path: Path) -> None:
    write_samples(make_samples(8), tmp_path / "train.jsonl")
    write_samples([make_sample(n, split="dev") for n in range(3)], tmp_path / "dev.jsonl")
    data = {"train": str(tmp_path / "train.jsonl"), "max_samples": 5, "without_context": True}
    sections = {"d2e": {"objective": "sft"}, "train": {"output_dir": str(tmp_path / "run")}}
    alone = RunSamples.of(Recipe.model_validate({"data": data, **sections}))
    assert (alone.training.in_file, len(alone.training.chosen)) == (8, 5)
    assert {sample.context for sample in alone.training.chosen} == {""}
    assert alone.held_out is alone.probe is None
    held_out = RunSamples.of(Recipe.model_validate({"data": {**data, "dev": str(tmp_path / "dev.jsonl")}, **sections}))
    assert held_out.held_out is not None
    assert [sample.id for sample in held_out.held_out.chosen] == ["s0", "s1", "s2"]


@pytest.mark.parametrize(
    ("given", "groups"),
    [
        ("A:aligned B:aligned A:conflict B:conflict", "aligned aligned_B conflict conflict_B"),
        ("A:aligned B:aligned B:conflict", "aligned_A aligned conflict"),  # the first lacks a subset
        ("A:aligned B:conflict", "aligned conflict"),
    ],
)
def test_a_probe_reports_the_first_dataset_with_both_subsets_and_further_ones_by_name(given: str, groups: str) -> None:
    named = [one.split(":") for one in given.split()]
    samples = [make_sample(n, dataset=dataset, subset=subset) for n, (dataset, subset) in enumerate(named)]
    assert probe_groups(samples) == groups.split()
