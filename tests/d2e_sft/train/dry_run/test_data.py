"""What a dry run says of the data: samples as the model sees them, percentiles of lengths, rows over the limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.config.recipe import load_recipe
from d2e_sft.data.views import EncodedSample
from d2e_sft.model.loading import load_model
from d2e_sft.train.dry_run.report import describe_overlong, length_table, render_example
from d2e_sft.train.rows import read_rows
from tests.tiny import make_sample, tiny_tokenizer


def test_samples_are_shown_as_the_model_sees_them() -> None:
    tokenizer = tiny_tokenizer()
    prompts = {
        "original": tokenizer("<|user|>rain, then what?<|end|><|assistant|>")["input_ids"],
        "imagined": tokenizer("<|user|>then what?<|end|><|assistant|>")["input_ids"],
    }
    encoded = EncodedSample(prompts=prompts, answer=tokenizer("flood\nno<|end|>")["input_ids"])  # type: ignore[arg-type]
    lines = render_example("first", make_sample(3), encoded, tokenizer)
    assert lines[0] == "first: s3 (made-up, qa)"
    # <|user|> alone is common: r and t differ. 18 + 9 and 12 + 9 tokens, all kept: one token is not worth sharing.
    assert lines[1] == f"  the views begin with 1 tokens in common; {19 + 13 + 18} tokens apart, 50 in a packed row"
    assert lines[2:6] == [
        "  original: prompt 19 + answer 9 tokens",
        "    | <|user|>rain, then what?<|end|><|assistant|>",
        "    > flood",
        "    > no<|end|>",
    ]


def test_percentiles_are_nearest_ranks() -> None:
    whole = [EncodedSample({"original": [0] * (n - 1)}, [0]) for n in (3, 1, 2, 4, 10, 9, 8, 7, 6, 5)]
    head, longest, *_ = length_table(whole)
    assert head.split() == ["tokens", "p50", "p90", "p95", "p99", "max"]
    assert longest.split()[-5:] == ["5", "9", "10", "10", "10"]


@pytest.mark.parametrize(
    ("rule", "limit", "said", "kept"),
    [
        ("drop", 310, "data.overlong=drop: training would leave out {refused}", None),
        ("truncate_context", 300, "training would cut the context of {cut}", 18),
        ("truncate_context", 239, "training would stop: data.overlong=truncate_context", None),
    ],
)
def test_what_the_length_rule_does_is_counted(
    recipe_file: Path, rule: str, limit: int, said: str, kept: int | None
) -> None:
    recipe = load_recipe(recipe_file, [f"data.overlong={rule}", f"data.max_length={limit}"])
    rows = read_rows(recipe, "training", load_model(recipe.model.name), progress=False, refuse=False)
    encoded, refused, cut = rows.encoded, len(rows.encoded.dropped), len(rows.encoded.truncated)
    assert all(item.longest <= limit for item in encoded.kept)
    assert len(encoded.kept) == 18 - refused
    assert kept is None or (len(encoded.kept) == kept and cut > 0)
    assert said.format(refused=refused, cut=cut) in "\n".join(describe_overlong(recipe, rows))


def test_a_long_line_of_a_sample_continues_below_its_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    tokenizer = tiny_tokenizer()
    ids = tokenizer("<|user|>" + "the rain fell, the river rose " * 6)["input_ids"]
    encoded = EncodedSample(prompts={"original": ids}, answer=tokenizer("flood<|end|>")["input_ids"])
    (shown,) = (line for line in render_example("first", make_sample(3), encoded, tokenizer) if "rain" in line)
    lines = shown.split("\n")
    assert len(lines) == 2
    assert max(map(len, lines)) <= 100
    assert lines[1].startswith("      ")
