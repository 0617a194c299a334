"""Comparisons over seeds: t-tests by hand, seeds with samples of their own, refusals, and files for a paper."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from scipy.stats import t, ttest_rel

from d2e_sft.config.recipe import load_recipe
from eval.compare.seeds import compare_seeds, load_seeds
from eval.compare.tables import seed_table
from eval.score.frame import holm
from tests.command import d2e, output_of, refusal_of
from tests.eval.compare.rows import accuracy, habit_rows, save_result
from tests.factories import choice, make_run, story
from tests.messages import assert_messages

CONFLICT = {"sft": (10, 14, 12), "d2e": (4, 5, 9), "swapped": (30, 33, 38)}  # right of 40, by seed


def trained(folder: Path, rows: list, seed: int, *keys: str, **changes: object) -> Path:
    make_run(folder, rows, **changes)
    words = [f"train.output_dir={folder}", f"train.seed={seed}", f"data.train={folder}.parquet", *keys]
    load_recipe("smollm2-135m-habit/sft", words).save(folder)
    return folder


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three ways of training in three seeds, and groups of runs that are refused."""
    folder = tmp_path_factory.mktemp("seeds")
    for way, rights in CONFLICT.items():
        for seed, right in enumerate(rights):
            trained(folder / f"{way}-{seed}", habit_rows(38, right), seed)
    rows = [choice(1, True)]
    for name, seed in (("few-0", 0), ("few-1", 1), ("mixed-0", 0), ("same-0", 0), ("same-1", 0)):
        trained(folder / name, rows, seed)
    trained(folder / "mixed-1", rows, 1, "train.learning_rate=0.5")
    for name in ("base-0", "base-1"):
        make_run(folder / name, rows)
    return folder


def test_means_and_paired_differences_over_seeds_are_those_of_scipy(world: Path) -> None:
    found = compare_seeds(load_seeds([world / f"{way}-*" for way in CONFLICT], None))
    assert (found.labels, found.seeds) == (("sft", "d2e", "swapped"), [0, 1, 2])
    shares = {way: [right / 40 for right in rights] for way, rights in CONFLICT.items()}
    own = {way: found.headline.score(way, "accuracy", "conflict") for way in CONFLICT}
    for way, values in shares.items():
        half = t.ppf(0.975, 2) * ttest_rel(values, [0, 0, 0]).statistic ** -1 * (mean := sum(values) / 3)
        bounds = max(mean - half, 0), min(mean + half, 1)  # where shares end
        assert (own[way].mean, own[way].low, own[way].high) == pytest.approx((mean, *bounds))
    tests = [ttest_rel(shares[way], shares["sft"]) for way in ("d2e", "swapped")]
    # Both runs' aligned rows are equal in all seeds, so four tests are corrected together.
    adjusted = holm([1.0, 1.0, *(test.pvalue for test in tests)])[2:]
    for way, test, p in zip(("d2e", "swapped"), tests, adjusted, strict=True):
        change, bounds = own[way].change, test.confidence_interval()
        assert (change.low, change.high, change.p_value) == pytest.approx((bounds.low, bounds.high, test.pvalue))
        assert change.adjusted_p == pytest.approx(p)


def test_seeds_may_have_samples_of_their_own_and_what_one_lacks_is_named(tmp_path: Path) -> None:
    for seed, dataset in enumerate(("habit", "other")):
        for way, right in (("a", 10), ("b", 30)):
            rows = [choice(n, n < right + seed) for n in range(40)] + [choice(99, True, dataset=dataset)]
            trained(tmp_path / f"{way}-{seed}", rows, seed, sha256=f"{seed}" * 64)
    patterns = [tmp_path / "a-*", tmp_path / "b-*"]
    found = compare_seeds(load_seeds(patterns, None))
    assert found.main[0].score("b", "mean").change.mean == pytest.approx(20 / 41)
    assert found.left_out == ("habit causal scq", "other causal scq")
    printed = output_of("compare", "--seeds", *patterns)
    # The same difference in both, so the interval is that of 82 rows.
    assert "b against a is not decided: mean +48.8 points [+45.1, +52.4], p 0.500, 2 seeds of 41 samples." in printed
    assert "Left out, because not all seeds have them: habit causal scq, other causal scq." in " ".join(
        printed.split()
    )
    assert "Decoded differently" not in printed


def test_a_subset_that_has_few_rows_in_one_seed_has_no_values_by_seed(tmp_path: Path) -> None:
    for seed, few in enumerate((18, 25, 25)):
        for way, right in (("a", 10), ("b", 30)):
            rows = [*habit_rows(38, right + seed), *(story(100 + n, "unanswerable", "unknown") for n in range(few))]
            run = trained(tmp_path / f"{way}-{seed}", rows, seed, sha256=f"{seed}" * 64)
            (run / "eval/mini/predictions.decoding.json").unlink()
    found = compare_seeds(load_seeds([tmp_path / "a-*", tmp_path / "b-*"], None))
    by_seed = {tuple(row[:2]): list(row[2:]) for row in seed_table(found).frame.itertuples(index=False)}
    assert by_seed["a", "conflict"] == ["25.0", "27.5", "30.0"]
    assert {name for _, name in by_seed} == {"aligned", "conflict", "gap"}
    assert len(found.decoding.unknown) == 6, "each run once, without its label"


@pytest.mark.parametrize(
    ("bench", "name"),
    [
        ("datasets-habit---seed-{}-habit.strength=0.95---swap-0.5", "habit-strength=0.95-swap-0.5"),
        ("habit_{}", "habit"),
        ("{}", ""),
    ],
)
def test_builds_of_each_seed_are_named_by_what_they_share(tmp_path: Path, bench: str, name: str) -> None:
    for seed in (0, 1, 2):
        trained(tmp_path / f"a-{seed}", [choice(n, n < 9 + seed) for n in range(20)], seed, bench=bench.format(seed))
    printed = output_of("compare", "--seeds", tmp_path / "a-*")
    assert f"{name}, a build for each seed: percent".lstrip(", ") in " ".join(printed.split())
    assert d2e("compare", "--seeds", tmp_path / "a-*", "--out", tmp_path / "c.tex") == 0
    label = rf"\label{{tab:{name or 'a-build-for-each-seed'}-1}}"
    assert label in (tmp_path / "c.tex").read_text(encoding="utf-8")


def test_measures_of_a_system_are_compared_over_seeds(tmp_path: Path) -> None:
    for seed in (0, 1):
        for way, right in (("a", [1, 0, 0, 0]), ("b", [1, 1, 1, seed])):
            save_result(tmp_path / f"{way}-{seed}", accuracy(right))
            load_recipe("smollm2-135m-habit/sft", [f"train.seed={seed}", "data.train=x", "train.output_dir=x"]).save(
                tmp_path / f"{way}-{seed}"
            )
    printed = output_of("compare", "--seeds", tmp_path / "a-*", tmp_path / "b-*")
    assert re.search(r"b +87\.5 \[.*\] +\+62\.5 \[", printed)
    assert "p of a paired t-test over seeds" in " ".join(printed.split())
    assert re.search(r"b +accuracy +75\.0 +100\.0", printed), "the score of each seed"


def test_the_files_for_a_paper_have_the_same_numbers(world: Path, tmp_path: Path) -> None:
    patterns = [world / f"{way}-*" for way in CONFLICT]
    for ending in ("tex", "pdf", "svg", "json"):
        assert d2e("compare", "--seeds", *patterns, "--out", tmp_path / f"c.{ending}") == 0
    table = (tmp_path / "c.tex").read_text(encoding="utf-8")
    assert r"swapped & 95.0 {\scriptsize {[}95.0, 95.0]} & 84.2 {\scriptsize" in table
    assert "95 \\% t intervals over 3 seeds" in table
    assert r"d2e & +0.0 {\scriptsize {[}$-$2.5, +2.5]} & 1.000 & $-$15.0 {\scriptsize {[}" in table
    assert (tmp_path / "c.pdf").read_bytes().startswith(b"%PDF")
    assert "conflict: habit is wrong" in (tmp_path / "c.svg").read_text(encoding="utf-8")
    content = json.loads((tmp_path / "c.json").read_text())
    assert content["seeds"] == [0, 1, 2]
    assert {row["seed"] for row in content["by_seed"]} == {0, 1, 2}
    assert d2e("report", "--seeds", *patterns, "--out", tmp_path / "p.html") == 0
    page = (tmp_path / "p.html").read_text(encoding="utf-8")
    assert "swapped uses the context more than sft.</p>" in page
    assert '<th scope="col">swapped, seed 2</th>' in page


def test_one_part_is_a_table_or_a_figure_alone(world: Path, tmp_path: Path) -> None:
    runs = world / "sft-0", world / "swapped-0"
    printed = output_of("compare", *runs, "--part", "groups")
    assert "habit, temporal, qa (80)" in printed
    assert "By subset" not in printed
    assert d2e("compare", *runs, "--part", "groups", "--out", tmp_path / "g.svg") == 0
    assert "Mean of EM and F1" in (tmp_path / "g.svg").read_text(encoding="utf-8")
    assert d2e("compare", *runs, "--part", "faithfulness", "--out", tmp_path / "f.tex") == 0
    assert r"\multicolumn{5}{l}{\emph{habit (80)}} \\" in (tmp_path / "f.tex").read_text(encoding="utf-8")


def test_what_is_refused(world: Path, tmp_path: Path) -> None:
    def seeds(*patterns: str) -> str:
        return refusal_of("compare", "--seeds", *(world / pattern for pattern in patterns))

    run, out = world / "sft-0", tmp_path / "new.html"
    said = {
        "no folder": seeds("sfx-*", "d2e-*"),
        "one folder, as the shell replaces a pattern without quotes": seeds("sft-0", "d2e-0"),
        "other seeds": seeds("sft-*", "few-*"),
        "another rate": seeds("mixed-*"),
        "one seed twice": seeds("same-*"),
        "no recipe": seeds("base-*"),
        "one run in two groups": seeds("sft-*", "sft-?"),
        "another reference": refusal_of("compare", "--seeds", world / "sft-*", world / "d2e-*", "--reference", "sftt"),
        "samples on a page of seeds": refusal_of("report", "--seeds", world / "sft-*", "--browse", 3, "--out", out),
        "an unknown kind of file": refusal_of("compare", run, "--out", tmp_path / "c.docx"),
        "a part that is not there": refusal_of("compare", run, "--part", "kinds"),
        "a figure of words": refusal_of("compare", run, "--part", "faithfulness", "--out", tmp_path / "f.pdf"),
    }
    places = {str(world): "SEEDS", str(tmp_path): "TMP"}
    for place, name in places.items():
        said = {key: text.replace(place, name) for key, text in said.items()}
    assert_messages(__file__, said)
    assert not list(tmp_path.iterdir())
