"""Where benchmarks and training rows are searched, how rows are shared out, and what few-shot prompts show."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.data.sample import EventSample, write_samples
from d2e_sft.util.errors import UserError
from eval.run.benchmark import locate_benchmark, locate_suite
from eval.run.demonstrations import MODERATE_WORDS, Demonstrations, load_demonstrations
from eval.run.processes import Processes, join_processes, share
from tests.factories import bench_rows, save_bench, train_rows
from tests.tiny import make_sample


@pytest.mark.parametrize("data", [None, "elsewhere", "elsewhere/mine"])
def test_a_suite_is_found_under_its_name_or_where_data_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path(data or "data") / ("" if data == "elsewhere/mine" else "ood")
    save_bench(folder, bench_rows(), manifest={"suite": "ood", "failures": {"timeqa": "missing"}})
    bench = locate_suite("ood", None if data is None else Path(data))
    assert bench == replace(locate_benchmark(folder), suite="ood", lacking=("timeqa",))
    assert bench.file == folder / "test.parquet"


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        (None, "no readable manifest"),
        ("{", "no readable manifest"),
        ({"suite": "ood"}, "holds suite 'ood'"),
        ({"suite": None}, "holds single datasets, no suite"),
    ],
)
def test_a_folder_without_the_suite_names_the_build_command(tmp_path: Path, manifest: Any, said: str) -> None:
    folder = save_bench(tmp_path / "piper", bench_rows(), manifest=manifest if isinstance(manifest, dict) else None)
    if isinstance(manifest, str):
        (folder / "manifest.json").write_text(manifest)
    with pytest.raises(UserError, match=said) as refused:
        locate_suite("piper", tmp_path)
    assert "d2e data build --suite piper --out" in str(refused.value)


def test_a_file_is_named_after_its_folder_and_itself(tmp_path: Path) -> None:
    save_bench(tmp_path / "mini", bench_rows())
    assert locate_benchmark(tmp_path / "mini").name == "mini"
    assert locate_benchmark(tmp_path / "mini" / "test.parquet").name == "mini-test"
    with pytest.raises(UserError, match=r"holds neither test.parquet nor test.jsonl"):
        locate_benchmark(tmp_path)


QA = ("made-up", "temporal", "qa")
NLI = ("made-up", "temporal", "nli")


def load(folder: Path, tests: list[EventSample], trains: list[EventSample], **options: Any) -> Demonstrations:
    bench = locate_benchmark(save_bench(folder, tests, trains))
    return load_demonstrations(bench, tests, tests, **{"path": None, "seed": 0, **options})


def ids(shown: Demonstrations, group: tuple[str, str, str]) -> list[str]:
    return [row.id for row in shown.groups[group]]


def test_every_sample_of_a_group_is_shown_the_same_three(tmp_path: Path) -> None:
    tests = bench_rows()
    shown = load(tmp_path, tests, train_rows())
    assert shown.groups.keys() == {QA, NLI}
    for sample in tests:
        rows = shown.of(sample)
        assert [row.id for row in rows] == ids(shown, (sample.dataset, sample.relation, sample.format))
        assert len({row.id for row in rows}) == 3
        assert {row.format for row in rows} == {sample.format}


def test_the_draw_depends_on_the_seed_and_not_on_the_order_of_rows_or_other_groups(tmp_path: Path) -> None:
    tests, trains = bench_rows(), train_rows(40)
    one = load(tmp_path / "one", tests, trains)
    assert ids(load(tmp_path / "two", tests, trains[::-1]), QA) == ids(one, QA)
    assert ids(load(tmp_path / "three", tests[::2], trains), QA) == ids(one, QA)
    draws = [load(tmp_path / f"seed{seed}", tests, trains, seed=seed) for seed in range(5)]
    for group in (QA, NLI):  # of nli, the rows that stand for a label are drawn as well
        assert not set.intersection(*(set(ids(draw, group)) for draw in draws))


def test_nli_shows_both_labels_however_rare_one_is(tmp_path: Path) -> None:
    trains = [
        row.model_copy(update={"answers": ["positive"]}) if row.format == "nli" else row for row in train_rows(60)
    ]
    rare = next(i for i, row in enumerate(trains) if row.format == "nli")
    trains[rare] = trains[rare].model_copy(update={"answers": ["negative"]})
    for seed in range(4):
        rows = load(tmp_path / str(seed), bench_rows(), trains, seed=seed).groups[NLI]
        assert sorted(row.answers[0] for row in rows) == ["negative", "positive", "positive"]


def test_a_row_of_the_test_is_never_shown_however_it_is_written(tmp_path: Path) -> None:
    tests = bench_rows()
    copies = [
        row.model_copy(update={"split": "train", "id": f"copy{i}", "context": row.context.upper().replace(".", " !")})
        for i, row in enumerate(tests)
    ]
    fresh = train_rows(12)
    for seed in range(6):
        shown = load(tmp_path / str(seed), tests, [*copies, *fresh], seed=seed)
        assert {row.id for rows in shown.groups.values() for row in rows} <= {row.id for row in fresh}


def test_rows_beyond_the_subset_and_of_other_splits_are_not_shown(tmp_path: Path) -> None:
    tests = bench_rows()
    with pytest.raises(UserError, match="has no row of split train"):
        load(tmp_path / "dev", tests, train_rows(split="dev"))
    bench = locate_benchmark(save_bench(tmp_path, tests, [row.model_copy(update={"split": "train"}) for row in tests]))
    with pytest.raises(UserError, match="has 0 training rows of format qa that are not in the test"):
        load_demonstrations(bench, tests[:1], tests, path=None, seed=0)


def test_the_nearest_rows_are_taken_dataset_then_relation_then_format(tmp_path: Path) -> None:
    near, far, own = train_rows(8, dataset="other"), train_rows(8, dataset="far", relation="causal"), train_rows(8)
    tests = bench_rows()
    # A suite's merged name stands for the datasets that it merged.
    merged = [row.model_copy(update={"dataset": "merged", "meta": {"source_dataset": "made-up"}}) for row in tests]
    for asked, trains, name, dataset in (
        (tests, [*own, *near, *far], "same dataset", "made-up"),
        (merged, [*own, *near], "same dataset", "made-up"),
        (tests, [*near, *far], "same relation", "other"),
        (tests, far, "same format", "far"),
    ):
        shown = load(tmp_path / f"{dataset}-{asked is merged}", asked, trains)
        assert set(shown.sources.values()) == {name}
        assert {row.dataset for rows in shown.groups.values() for row in rows} == {dataset}


def test_moderate_contexts_and_different_passages_are_preferred(tmp_path: Path) -> None:
    long = "word " * (MODERATE_WORDS + 1)
    qa = [make_sample(i, split="train", id=f"short{i}", context=f"Short text {i}.") for i in range(30)]
    qa += [make_sample(i, split="train", id=f"long{i}", context=f"{long}{i}") for i in range(60)]
    same = [make_sample(i, split="train", id=f"same{i}", context="One passage.") for i in range(30)]
    tests = bench_rows()[::2]
    for seed in range(5):
        rows = load(tmp_path / str(seed), tests, [*qa, *same], seed=seed).groups[QA]
        assert all(len(row.context.split()) <= MODERATE_WORDS for row in rows)
        assert len({row.context for row in rows}) == 3


def test_training_rows_are_looked_for_in_three_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tests = bench_rows()
    bench = locate_benchmark(save_bench(tmp_path / "mine" / "bench", tests))

    def file(given: Path | None = None) -> Path:
        return load_demonstrations(bench, tests, tests, path=given, seed=0).file

    with pytest.raises(UserError) as refused:
        file()
    assert "d2e data build --suite piper-10k --allow-shortfall --out data/piper-10k" in str(refused.value)
    places = [Path("data/piper-10k"), tmp_path / "mine" / "piper-10k", tmp_path / "mine" / "bench"]
    for place in places:
        write_samples(train_rows(), place / "train.jsonl")
        assert file() == place / "train.jsonl"
    assert file(places[0]) == file(places[0] / "train.jsonl") == places[0] / "train.jsonl"
    with pytest.raises(UserError, match="neither a file nor a folder with"):
        file(tmp_path / "nowhere")


LENGTHS = [random.Random(0).randrange(50, 900) for _ in range(103)]
GROUPS = [random.Random(i).choice("aab") for i in range(103)]


def shares(processes: int, done: frozenset[int] = frozenset()) -> list[list[int]]:
    return [list(share(LENGTHS, GROUPS, 4, done, Processes(index=i, count=processes))) for i in range(processes)]


@pytest.mark.parametrize("processes", [1, 3])
def test_every_row_that_is_left_is_decoded_by_one_process(processes: int) -> None:
    assert sorted(i for part in shares(processes) for i in part) == list(range(len(LENGTHS)))
    done = frozenset(range(0, 103, 3))
    alone = list(share(LENGTHS, GROUPS, 4, frozenset(), Processes()))
    for i in range(processes):
        for place, rank in share(LENGTHS, GROUPS, 4, done, Processes(index=i, count=processes)).items():
            assert alone[rank] == place, "its draws are those of one process that was not interrupted"
    assert sorted(i for part in shares(processes, done) for i in part) == [i for i in range(103) if i % 3]


def test_batches_hold_the_same_rows_whatever_the_number_of_processes() -> None:
    def batches(processes: int) -> set[tuple[int, ...]]:
        # As decoding cuts them: the rows of a group longest first, in fours.
        found = set()
        for part in shares(processes):
            for group in "ab":
                members = [i for i in part if GROUPS[i] == group]
                rows = sorted(members, key=lambda i: LENGTHS[i], reverse=True)
                found |= {tuple(rows[start : start + 4]) for start in range(0, len(rows), 4)}
        return found

    assert batches(2) == batches(1) == batches(5)


@pytest.mark.parametrize(("engine", "own"), [("vllm", "--tensor-parallel"), ("openai", "--concurrency")])
def test_engines_that_spread_work_refuse_processes(monkeypatch: pytest.MonkeyPatch, engine: str, own: str) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match=f"on 2 processes[\\s\\S]*{own}"):
        join_processes(engine)
