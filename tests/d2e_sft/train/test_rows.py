"""Which rows of a file are trained on, and what becomes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from d2e_sft.config.recipe import Recipe
from d2e_sft.data.sample import write_samples
from d2e_sft.model.loading import load_model
from d2e_sft.train.rows import describe_rows, read_rows
from d2e_sft.util.errors import UserError
from tests.tiny import make_sample, make_samples, save_tiny_model


def test_rows_are_counted_as_they_are_read(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "model")
    samples = [make_sample(n, context="long " * 100 if n == 1 else "") for n in range(4)]
    write_samples(samples, tmp_path / "train.jsonl")
    content = {"train": str(tmp_path / "train.jsonl"), "max_length": 400, "max_samples": 3, "overlong": "drop"}
    recipe = Recipe.model_validate({"data": content, "train": {"output_dir": str(tmp_path / "run")}})
    loaded = load_model(str(tmp_path / "model"))
    rows = read_rows(recipe, "training", loaded, progress=False)
    assert (rows.in_file, len(rows.whole), len(rows.samples), len(rows.dataset)) == (4, 3, 2, 2)
    assert describe_rows(recipe, "training", rows) == [
        f"training samples: 2 of 4 in {tmp_path}/train.jsonl (data.max_samples=3)",
        "  1 longer than 400 tokens and dropped",
        "  2 without a context, so that the imagined view is the original",
    ]
    recipe.data.overlong = "truncate_context"
    rows = read_rows(recipe, "training", loaded, progress=False)
    assert max(item.longest for item in rows.kept) <= 400
    assert "  1 longer than 400 tokens, so their contexts are cut" in describe_rows(recipe, "training", rows)
    recipe.data.overlong = "error"
    with pytest.raises(UserError, match=r"train.jsonl: 1 of 3 samples exceed data.max_length=400"):
        read_rows(recipe, "training", loaded, progress=False)
    assert len(read_rows(recipe, "training", loaded, progress=False, refuse=False).samples) == 2


def test_without_contexts_the_original_view_is_the_imagined_one(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "model")
    write_samples(make_samples(3), tmp_path / "train.jsonl")
    content = {
        "data": {"train": str(tmp_path / "train.jsonl")},
        "train": {"output_dir": str(tmp_path / "run")},
        "d2e": {"distill": False},
    }
    loaded = load_model(str(tmp_path / "model"))
    both = read_rows(Recipe.model_validate(content), "training", loaded, progress=False)
    content["data"]["without_context"] = "true"
    with pytest.raises(ValueError, match="with the views original, imagined: without contexts they are the same"):
        Recipe.model_validate(content)
    content["d2e"] = {"objective": "sft"}
    recipe = Recipe.model_validate(content)
    rows = read_rows(recipe, "training", loaded, progress=False)
    assert [item.prompts for item in rows.kept] == [{"original": item.prompts["imagined"]} for item in both.kept]
    assert "  3 whose contexts are left out (data.without_context)" in describe_rows(recipe, "training", rows)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["  refined = original in 67 % of the rows (2 of 3): the KL term is 0 there"]),
        ({"objective": "teacher"}, ["  refined = original in 67 % of the rows (2 of 3): the KL term is 0 there"]),
        (
            {"objective": "m:f", "own_views": ["original", "refined"]},
            ["  refined = original in 67 % of the rows (2 of 3)"],
        ),
        ({"distill": False}, []),
    ],
)
def test_rows_without_a_refined_view_of_their_own_are_counted(
    tmp_path: Path, options: dict[str, Any], expected: list[str]
) -> None:
    save_tiny_model(tmp_path / "model")
    whole = make_sample(1).context
    samples = [make_sample(1), *(make_sample(1, id=name, refined_context=whole) for name in "ab")]
    write_samples(samples, tmp_path / "train.jsonl")
    data = {"train": str(tmp_path / "train.jsonl")}
    recipe = Recipe.model_validate({"data": data, "d2e": options, "train": {"output_dir": str(tmp_path / "run")}})
    rows = read_rows(recipe, "training", load_model(str(tmp_path / "model")), progress=False)
    assert describe_rows(recipe, "training", rows)[1:] == expected


def test_rejected_answers_are_counted_by_source_and_encoded_like_answers(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "model")
    changes: list[dict[str, Any]] = [
        {"rejected": ["a very long and wrong answer"]},
        {"habit": ["the hill"], "subset": "conflict"},
        {"meta": {"swapped": {"from": "the sea", "to": "the river"}}},
        {"habit": ["the river"], "subset": "aligned"},
    ]
    rejected = ["a very long and wrong answer", "the hill", "the sea", None]
    samples = [make_sample(n, answers=["the river"], **change) for n, change in enumerate(changes)]
    write_samples(samples, tmp_path / "train.jsonl")
    content: dict[str, Any] = {
        "data": {"train": str(tmp_path / "train.jsonl")},
        "train": {"output_dir": str(tmp_path / "run")},
        "d2e": {"objective": "prefer"},
    }
    loaded, recipe = load_model(str(tmp_path / "model")), Recipe.model_validate(content)
    rows = read_rows(recipe, "training", loaded, progress=False)
    told = "  1 without a rejected answer, "
    assert describe_rows(recipe, "training", rows)[1:] == [
        "  pairs: 3; the rejected answer is 1 the column rejected, 1 the habit, 1 the answer before the swap",
        f"{told}trained by the cross entropy only (d2e.sft_weight=1)",
    ]
    recipe.d2e.sft_weight = 0
    assert describe_rows(recipe, "training", rows)[-1] == f"{told}with no effect"
    others = [
        sample.model_copy(update={"answers": [text], "rejected": []})
        for sample, text in zip(samples, rejected, strict=True)
        if text
    ]
    write_samples(others, tmp_path / "train.jsonl")
    recipe.d2e.objective = "sft"
    expected = [row["answer"] for row in read_rows(recipe, "training", loaded, progress=False).dataset]
    assert [row["rejected"] for row in rows.dataset] == [*expected, []]
    assert "rejected" not in read_rows(recipe, "training", loaded, progress=False).dataset[0]
    # The longer of the two answers counts, also where contexts are cut.
    longest = rows.kept[0].longest
    assert longest == len(rows.dataset[0]["original"]) + len(rows.dataset[0]["rejected"])
    recipe.d2e.objective, recipe.data.max_length, recipe.data.overlong = "prefer", longest - 5, "truncate_context"
    write_samples(samples, tmp_path / "train.jsonl")
    cut = read_rows(recipe, "training", loaded, progress=False)
    assert max(item.longest for item in cut.kept) <= longest - 5
    assert [row["rejected"] for row in cut.dataset] == [row["rejected"] for row in rows.dataset]
