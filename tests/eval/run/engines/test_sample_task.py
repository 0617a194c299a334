"""Samples as a task: names, groups, views, and contexts that exceed the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.data.prompts import SettingPrompts, load_prompt_set
from d2e_sft.util.errors import UserError
from eval.run.engines.sample_task import SampleTask
from tests.command import d2e
from tests.factories import QUICK, bench_row, save_bench, scores_of
from tests.tiny import tiny_tokenizer

LONG = "The road was closed. " * 60


def task(contexts: list[str], *, overlong: str = "error", without_context: bool = False) -> SampleTask:
    """Of one format, so that the wordings are of one length."""
    return SampleTask(
        samples=[bench_row(2 * i, context=context) for i, context in enumerate(contexts)],
        wording=SettingPrompts(load_prompt_set("default")),
        decoding=DecodingConfig(alpha=0.5, max_new_tokens=6),
        without_context=without_context,
        overlong=overlong,
    )


def test_the_answered_view_has_no_context_where_it_is_left_out() -> None:
    rain = ["It rained."]
    assert "It rained." in task(rain).messages(0)[-1]["content"]
    assert "It rained." not in task(rain, without_context=True).messages(0)[-1]["content"]
    assert "It rained." not in task(rain).messages(0, "imagined")[-1]["content"]
    assert task(rain).label(0) == "sample 's0' of 'made-up'"


def test_only_the_contexts_that_are_too_long_are_cut_and_their_places_told() -> None:
    contexts, tokenizer = ["It rained.", LONG, "It snowed."], tiny_tokenizer()
    whole = task(contexts).tokens(tokenizer, encoder_decoder=False, limit=None)
    limit = max(len(whole.originals[0]), len(whole.originals[2])) + 10 + 6  # the answer takes six
    cut = task(contexts, overlong="truncate_context").tokens(tokenizer, encoder_decoder=False, limit=limit)
    assert cut.truncated == {1}
    assert whole.truncated == frozenset()
    assert [len(ids) <= limit - 6 for ids in cut.originals] == [True, True, True]
    assert (cut.originals[0], cut.originals[2]) == (whole.originals[0], whole.originals[2])
    assert cut.imagined == whole.imagined, "which has no context to cut"


def test_a_refusal_counts_them_names_the_longest_and_says_the_budget() -> None:
    budget = len(task(["It rained."]).tokens(tiny_tokenizer(), encoder_decoder=False, limit=None).originals[0])
    said = f"2 of 3 samples exceed .* have {budget} tokens beside 6 new .* 's4' of 'made-up', has"
    with pytest.raises(UserError, match=said):
        task(["It rained.", LONG, LONG * 2]).tokens(tiny_tokenizer(), encoder_decoder=False, limit=budget + 6)


def test_contexts_beyond_the_model_are_an_error_or_cut(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [bench_row(i, context=LONG if i in (1, 4) else "It rained.") for i in range(6)]
    save_bench(tmp_path / "bench", rows)
    common = ("eval", world / "model", "--bench", tmp_path / "bench", "--out", tmp_path / "run", *QUICK)
    assert d2e(*common) == 1
    error = capsys.readouterr().err
    assert "2 of 6 samples exceed the model's context" in error
    assert "'s1' of 'made-up', has" in error, "the longest is named: nli has the longer wording"
    assert "--overlong truncate_context" in error
    assert not (tmp_path / "run").exists(), "a refused command leaves no folder behind"
    assert d2e(*common, "--overlong", "truncate_context") == 0
    assert scores_of(tmp_path / "run")["truncated"] == 2
    assert "contexts cut to fit the model: 2" in capsys.readouterr().out
    assert d2e(*common, "--overlong", "truncate_context") == 0
    assert scores_of(tmp_path / "run")["truncated"] == 2, "also when they are only scored again"


def test_a_prompt_that_is_too_long_without_its_context_cannot_be_cut(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_bench(tmp_path / "bench", [bench_row(0, question=LONG)])
    arguments = ("--bench", tmp_path / "bench", "--out", tmp_path / "run", "--overlong", "truncate_context")
    assert d2e("eval", world / "model", *arguments) == 1
    assert "exceed the model's context even without their contexts" in capsys.readouterr().err
