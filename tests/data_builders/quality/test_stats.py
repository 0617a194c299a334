"""`d2e data stats`: numbers against independent counts, and the page."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from d2e_sft.cli import main
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import EventSample, read_samples, write_samples
from d2e_sft.data.views import ViewEncoder
from data_builders.build.options import BuildOptions
from data_builders.build.run import build
from data_builders.commands import data
from data_builders.dataset.sample_sets import SampleSet, read_set
from data_builders.quality.context_free import hypothesis_alone
from data_builders.quality.stats import Stats, compute_stats
from data_builders.quality.stats_page import render_page
from tests.tiny import tiny_tokenizer


@pytest.fixture
def built(raw: Path, tmp_path: Path) -> Path:
    build(BuildOptions(["tracie", "ecare", "ester"], tmp_path / "built", raw))
    return tmp_path / "built"


def _nli(number: int, context: str, hypothesis: str, label: str, **changes: Any) -> EventSample:
    row = {
        "id": str(number),
        "dataset": "own",
        "split": "test",
        "relation": "causal",
        "format": "nli",
        "context": context,
        "question": hypothesis,
        "answers": [label],
    }
    return EventSample.model_validate(row | changes)


def _words(path: Path) -> Stats:
    return compute_stats([read_set(path)], tokenizer="words")


def test_counts_are_those_of_the_rows(built: Path) -> None:
    samples = [sample for split in ("train", "test") for sample in read_samples(built / f"{split}.parquet")]
    expected = Counter((s.split, s.dataset, s.relation, s.format) for s in samples)
    stats = _words(built)
    found = {
        (group.group.split, group.group.dataset, *kind): rows
        for group in stats.groups
        for kind, rows in group.counts.items()
    }
    assert found == expected
    assert stats.rows == len(samples)


def test_lengths_in_words_are_those_of_the_two_messages(built: Path) -> None:
    prompts = load_prompt_set("default")
    for group in _words(built).groups:
        rows = [s for s in read_samples(built / f"{group.group.split}.parquet") if s.dataset == group.group.dataset]
        for view, lengths in group.lengths.items():
            words = [len(" ".join(m["content"] for m in prompts.messages(row, view)).split()) for row in rows]
            assert (lengths.n, lengths.median, lengths.longest) == (len(rows), median(words), max(words))


def test_lengths_in_tokens_are_those_that_training_gets(built: Path, tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text('{"model_type": "llama"}')
    encoder = ViewEncoder(tokenizer, load_prompt_set("default"), ["original", "imagined", "refined"])
    stats = compute_stats([read_set(built)], tokenizer=str(tmp_path / "model"))
    assert stats.unit == "tokens"
    for group in stats.groups:
        rows = [s for s in read_samples(built / f"{group.group.split}.parquet") if s.dataset == group.group.dataset]
        for view, lengths in group.lengths.items():
            tokens = [len(encoder.encode(row).prompts[view]) for row in rows]
            assert (lengths.n, lengths.median, lengths.longest) == (len(rows), median(tokens), max(tokens))


def test_the_refined_view_counts_only_rows_that_have_one() -> None:
    rows = [_nli(n, "It rained. A cat slept.", "It was wet.", "positive") for n in range(4)]
    rows[0] = rows[0].model_copy(update={"refined_context": "It rained."})
    (group,) = compute_stats([SampleSet("own", rows)], tokenizer="words").groups
    assert (group.lengths["original"].n, group.lengths["refined"].n) == (4, 1)
    assert group.refined_share == 0.4  # two of five words
    (none,) = compute_stats([SampleSet("own", rows[1:])], tokenizer="words").groups
    assert "refined" not in none.lengths
    assert none.refined_share is None


def test_datasets_of_one_name_in_two_sets_stay_apart() -> None:
    one, other = (_nli(1, "It rained.", "It was wet.", label) for label in ("positive", "negative"))
    sets = [SampleSet("a", [one]), SampleSet("b", [other])]
    labels = {group.group.data: group.labels for group in compute_stats(sets, tokenizer="words").groups}
    assert labels == {"a": {"positive": 1, "negative": 0}, "b": {"positive": 0, "negative": 1}}


def _hypotheses(tell: str, seed: int = 1) -> list[EventSample]:
    """400 rows on 100 premises; `tell` says what gives the label away: the hypothesis, the premise or nothing."""
    random_ = random.Random(seed)
    rows = []
    for number in range(400):
        label = random_.choice(("positive", "negative"))
        premise = number // 4
        if tell == "premise":
            label = ("positive", "negative")[premise % 2]
        word = {"hypothesis": {"positive": "surely", "negative": "never"}[label], "premise": f"word{premise}"}
        rows.append(_nli(number, f"Story {premise}.", f"She {word.get(tell, 'then')} came home {number}.", label))
    return rows


def test_a_give_away_word_is_found_and_chance_is_chance() -> None:
    leaking, clean = hypothesis_alone(_hypotheses("hypothesis")), hypothesis_alone(_hypotheses("nothing"))
    assert leaking.accuracy is not None
    assert clean.accuracy is not None
    assert clean.standard_error is not None
    assert leaking.accuracy > 0.99
    assert abs(clean.accuracy - 0.5) < 4 * clean.standard_error
    assert clean.standard_error == pytest.approx((clean.accuracy * (1 - clean.accuracy) / 400) ** 0.5, abs=1e-4)


def test_what_is_learnt_about_a_premise_does_not_count() -> None:
    """Each premise has a word of its own that tells its label: it helps only where the premise was trained on."""
    alone = hypothesis_alone(_hypotheses("premise"))
    assert alone.contexts == 100
    assert alone.accuracy is not None
    assert alone.accuracy < 0.7


def test_the_baseline_is_the_same_every_time_and_the_seed_matters() -> None:
    rows = _hypotheses("nothing")
    assert hypothesis_alone(rows) == hypothesis_alone(rows)
    assert len({hypothesis_alone(rows, seed).accuracy for seed in range(4)}) > 1


def test_too_few_rows_give_no_accuracy() -> None:
    rows = _hypotheses("hypothesis")
    few = hypothesis_alone(rows[:20])
    assert (few.n, few.contexts, few.accuracy) == (20, 5, None)
    one_label = hypothesis_alone([row for row in rows if row.answers == ["positive"]])
    assert (one_label.majority_share, one_label.accuracy) == (1.0, None)


def test_majority_share_is_of_the_more_frequent_label() -> None:
    rows = _hypotheses("nothing")
    positive = sum(row.answers == ["positive"] for row in rows)
    assert hypothesis_alone(rows).majority_share == round(max(positive, 400 - positive) / 400, 4)


def test_the_page_is_whole_and_its_plots_are_described(built: Path) -> None:
    page = render_page(compute_stats([read_set(built)], tokenizer="words"))
    plots = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    assert len(plots) == 5
    for plot in plots:
        root = ElementTree.fromstring(plot.replace("<svg", '<svg xmlns:xlink="http://www.w3.org/1999/xlink"', 1))
        assert "tracie" in root.attrib["aria-label"]
    assert not re.search(r"<link|<script|<img|@import|src=|href=\"http", page)


def test_the_page_escapes_names() -> None:
    rows = [_nli(1, "It rained.", "It was wet.", "positive", dataset="<b>$x_1$ & co")]
    page = render_page(compute_stats([SampleSet("<i>set", rows)], tokenizer="words"))
    assert "<b>" not in page
    assert "<i>" not in page
    assert "&lt;b&gt;$x_1$ &amp; co" in page


def test_a_page_without_nli_and_refined_contexts_leaves_them_out() -> None:
    rows = [_nli(1, "It rained.", "What got wet?", "all", format="qa")]
    page = render_page(compute_stats([SampleSet("own", rows)], tokenizer="words"))
    assert "hypothesis" not in page
    assert "What the refiner keeps" not in page


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(data, ["stats", *map(str, arguments)])


def test_the_command_prints_and_writes_the_same_numbers(built: Path, tmp_path: Path) -> None:
    html, numbers = tmp_path / "a/stats.html", tmp_path / "b/stats.json"
    result = _run(built, "--tokenizer", "words", "--html", html, "--json", numbers)
    assert result.exit_code == 0, result.output
    written = json.loads(numbers.read_text("utf-8"))
    assert written == _words(built).to_json()
    lines = [line.split() for line in result.output.splitlines()]
    for group in written["groups"]:
        for kind in group["counts"]:
            assert [group["dataset"], group["split"], kind["relation"], kind["format"], str(kind["rows"])] in lines
    assert html.read_text("utf-8") == render_page(_words(built))


def _error(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(["data", "stats", *map(str, arguments)])
    assert stopped.value.code == 1
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("missing.parquet", (), "missing.parquet: no such file"),
        ("broken.parquet", (), "broken.parquet: not a readable Parquet file"),
        ("empty.jsonl", (), "empty.jsonl: no usable row"),
        ("folder", (), "folder: a folder without train.parquet or dev.parquet or test.parquet"),
        ("good.jsonl", ("--tokenizer", "builtin:other"), "model 'builtin:other': no such builtin"),
        ("good.jsonl", ("--tokenizer", "./nowhere"), "model './nowhere': no such folder"),
        ("good.jsonl", ("--tokenizer", "nobody/nothing"), "model 'nobody/nothing': cannot be loaded"),
        ("good.jsonl", ("--prompt-set", "other"), "prompt set 'other': not found"),
    ],
)
def test_bad_input_is_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, options: Sequence[str], message: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "broken.parquet").write_text("no")
    (tmp_path / "empty.jsonl").touch()
    write_samples([_nli(1, "It rained.", "It was wet.", "positive")], tmp_path / "good.jsonl")
    assert message in _error(capsys, tmp_path / name, *options)


def test_what_the_hypotheses_of_the_published_files_tell(published_raw: Path, tmp_path: Path) -> None:
    """CIDER's negatives cannot be told without the dialogue; TRACIE's hypotheses give some of its labels away."""
    build(BuildOptions(["tracie", "cider"], tmp_path, published_raw))
    samples = read_samples(tmp_path / "test.parquet")
    cider, tracie = (hypothesis_alone([s for s in samples if s.dataset == name]) for name in ("cider", "tracie"))
    assert cider.accuracy is not None
    assert tracie.accuracy is not None
    assert 0.46 < cider.accuracy < 0.56
    assert 0.58 < tracie.accuracy < 0.68
