"""Find a benchmark by folder, by file, or as a suite of `d2e data build`, and choose its samples."""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from d2e_sft.data.built import MANIFEST, read_manifest
from d2e_sft.data.sample import BadRow, EventSample
from d2e_sft.util.errors import UserError

SUITES = ("piper", "ood", "conflict")
DATA_ROOT = Path("data")
INSTRUCTION_SET = "piper-10k"


@dataclass(frozen=True)
class BenchmarkFile:
    """A benchmark on disk: results' folder name, test rows, and the suite's datasets that its build could not read."""

    name: str
    file: Path
    suite: str | None = None
    lacking: tuple[str, ...] = ()


@dataclass(frozen=True)
class BenchmarkRows:
    """The rows of a benchmark's file, in file order: all valid ones, those to decode, and invalid ones.

    `without_options` counts valid rows that were left out because they have no options to score.
    """

    all: list[EventSample]
    chosen: list[EventSample]
    bad: list[BadRow]
    sha256: str
    without_options: int = 0

    @property
    def is_subset(self) -> bool:
        return len(self.chosen) < len(self.all) - self.without_options


def results_name(bench: str, setting: str = "zero_shot", form: str = "chat", answer: str = "generate") -> str:
    """Return the name of a benchmark's results: its own, and how it is asked and answered, unless that is usual."""
    return "-".join(
        [bench, *(part for part in (setting, form, answer) if part not in ("zero_shot", "chat", "generate"))]
    )


def locate_benchmark(path: str | Path) -> BenchmarkFile:
    """Find the benchmark in a folder of `d2e data build` (its test rows) or in one file of rows; UserError if none."""
    path = Path(path)
    if path.is_dir():
        file = rows_file(path, "test")
        if file is None:
            raise UserError(
                f"{path}: holds neither test.parquet nor test.jsonl", f"build it with `d2e data build … --out {path}`"
            )
        return BenchmarkFile(path.resolve().name, file)
    if not path.is_file():
        raise UserError(
            f"benchmark {str(path)!r}: no such file or folder", "give a folder written by `d2e data build`"
        )
    return BenchmarkFile(f"{path.resolve().parent.name}-{path.stem}", path)


def locate_suite(suite: str, data: Path | None = None) -> BenchmarkFile:
    """Find a suite that `d2e data build --suite SUITE --out DATA/SUITE` wrote; UserError if it has not been built.

    `data` is DATA, or the folder of the suite itself; None means the folder `data`.
    """
    root = DATA_ROOT if data is None else data
    is_suite = data is not None and (root / MANIFEST).is_file()
    folder = root if is_suite else root / suite
    try:
        manifest = read_manifest(folder)
    except UserError as error:
        raise UserError(
            f"suite {suite!r}: no readable manifest in {folder} ({error.message})",
            f"build it: d2e data build --suite {suite} --out {folder}",
        ) from None
    built = manifest.get("suite")
    if built != suite:
        content = f"suite {built!r}" if built else "single datasets, no suite"
        raise UserError(
            f"suite {suite!r}: {folder} holds {content}",
            f"build it into a folder of its own (d2e data build --suite {suite} --out {DATA_ROOT / suite}), "
            "or give the folder that has it: --data DIR",
        )
    return replace(locate_benchmark(folder), suite=suite, lacking=tuple(manifest.get("failures") or ()))


def rows_file(folder: Path, split: str) -> Path | None:
    files = (folder / f"{split}.{ending}" for ending in ("parquet", "jsonl"))
    return next((file for file in files if file.is_file()), None)


def choose_per_group(samples: Sequence[EventSample], limit: int | None, seed: int) -> list[EventSample]:
    """At most `limit` samples of each dataset × relation × format, drawn with a seed, in file order."""
    if limit is None:
        return list(samples)
    groups: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for i, sample in enumerate(samples):
        groups[sample.dataset, sample.relation, sample.format].append(i)
    generator = random.Random(seed)
    chosen = [i for indices in groups.values() for i in generator.sample(indices, min(limit, len(indices)))]
    return [samples[i] for i in sorted(chosen)]


def with_candidates(samples: Sequence[EventSample], file: Path) -> list[EventSample]:
    askable = [sample for sample in samples if sample.candidates]
    if not askable:
        raise UserError(
            f"{file}: all {len(samples)} rows ask for free text (qa); --answer likelihood compares options, and "
            "expected rows of nli, scq or mcq",
            "generate the answers: --answer generate",
        )
    return askable
