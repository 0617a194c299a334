"""The solved samples in a few-shot prompt: three per group, from training rows, never from the test rows.

All samples of a group (dataset × relation × format) get the same three in the same order, so that their prompts share
a prefix, which is computed once.
"""

import hashlib
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from d2e_sft.data.sample import NLI_LABELS, EventSample, read_samples
from d2e_sft.util.answers import normalise
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import sha256_of
from eval.run.benchmark import DATA_ROOT, INSTRUCTION_SET, BenchmarkFile, rows_file
from eval.score.scores import GroupKey

SHOTS = 3
# Longest context in words that is preferred, since every prompt of a group holds three contexts.
MODERATE_WORDS = 120
# Number of rows to draw from, at least, even if their contexts are longer.
LEAST_CHOICE = 20
_NOT_IN_PROMPTS = {"meta", "subset", "habit", "rejected"}


@dataclass(frozen=True)
class Demonstrations:
    """The training rows that each group's prompts show, and the file that they are from.

    `sources` says how each group's rows match it: `same dataset`, `same relation` or `same format`.
    """

    file: Path
    sha256: str
    groups: Mapping[GroupKey, Sequence[EventSample]]
    sources: Mapping[GroupKey, str]

    def of(self, sample: EventSample) -> Sequence[EventSample]:
        return self.groups[sample.dataset, sample.relation, sample.format]

    def digest(self) -> str:
        """SHA-256 of the rows, independent of their file."""
        digest = hashlib.sha256()
        for group in sorted(self.groups):
            digest.update(repr(group).encode())
            for row in self.groups[group]:
                idle = _NOT_IN_PROMPTS | ({"conversation"} if row.conversation is None else set())
                digest.update(row.model_dump_json(exclude=idle).encode())
        return digest.hexdigest()

    def describe(self) -> dict[str, Any]:
        """File, and dataset and id of each group's rows, for `scores.json`."""
        return {
            "file": str(self.file),
            "sha256": self.sha256,
            "groups": [
                {
                    "dataset": group[0],
                    "relation": group[1],
                    "format": group[2],
                    "taken_by": self.sources[group],
                    "rows": [{"dataset": row.dataset, "id": row.id} for row in rows],
                }
                for group, rows in self.groups.items()
            ],
        }


def load_demonstrations(
    benchmark: BenchmarkFile,
    samples: Sequence[EventSample],
    tests: Sequence[EventSample],
    *,
    path: Path | None,
    seed: int,
) -> Demonstrations:
    """Choose the demonstrations of every group; UserError if no training rows were found, or too few for a group.

    Rows with the context and question of one of the `tests`, every row of the benchmark, are not shown. `path` is a
    file or folder of training rows. None means the benchmark's own training split, else the instruction set next to it
    or in `data`.
    """
    file = _locate(benchmark, path)
    rows = [row for row in read_samples(file) if row.split == "train"]
    if not rows:
        raise UserError(f"{file}: has no row of split train; expected training rows", "give others: --demonstrations")
    known = {_content(sample) for sample in tests}
    usable = [row for row in rows if row.context.strip() and _content(row) not in known]
    groups: dict[GroupKey, Sequence[EventSample]] = {}
    sources: dict[GroupKey, str] = {}
    # Groups in order of appearance, with their datasets: a suite may merge several.
    datasets: dict[GroupKey, set[str]] = defaultdict(set)
    for sample in samples:
        source = sample.meta.get("source_dataset")
        names = {sample.dataset, source} if isinstance(source, str) else {sample.dataset}
        datasets[sample.dataset, sample.relation, sample.format] |= names
    for group, names in datasets.items():
        sources[group], groups[group] = _choose(group, names, usable, seed, file)
    return Demonstrations(file, sha256_of(file), groups, sources)


def _locate(benchmark: BenchmarkFile, path: Path | None) -> Path:
    if path is not None:
        file = rows_file(path, "train") if path.is_dir() else path
        if file is None or not file.is_file():
            raise UserError(
                f"--demonstrations {path}: neither a file nor a folder with train.parquet or train.jsonl",
                "give a folder written by `d2e data build`, or a file",
            )
        return file
    default = DATA_ROOT / INSTRUCTION_SET
    folders = list(dict.fromkeys([benchmark.file.parent, benchmark.file.parent.parent / INSTRUCTION_SET, default]))
    file = next((candidate for folder in folders if (candidate := rows_file(folder, "train"))), None)
    if file is None:
        raise UserError(
            f"setting few_shot: no training rows to show in {', '.join(map(str, folders))}",
            f"build the instruction set (d2e data build --suite {INSTRUCTION_SET} --allow-shortfall --out {default}), "
            "or give a file or folder of training rows: --demonstrations PATH",
        )
    return file


def _choose(
    group: GroupKey, names: set[str], rows: Sequence[EventSample], seed: int, file: Path
) -> tuple[str, list[EventSample]]:
    dataset, relation, fmt = group
    of_format = [row for row in rows if row.format == fmt]
    of_relation = [row for row in of_format if row.relation == relation]
    tiers = {
        "same dataset": [row for row in of_relation if row.dataset in names],
        "same relation": of_relation,
        "same format": of_format,
    }
    for name, candidates in tiers.items():
        # Each group has its own seed, so that other groups make no difference.
        chosen = _draw(candidates, fmt, random.Random(f"{seed}/{dataset}/{relation}/{fmt}"))
        if chosen is not None:
            return name, chosen
    labels = " of both labels" if fmt == "nli" else ""
    raise UserError(
        f"{file}: has {len(of_format)} training rows of format {fmt} that are not in the test; expected "
        f"{SHOTS}{labels} to show for {dataset}, {relation}",
        "give a file or folder with more: --demonstrations PATH",
    )


def _draw(candidates: Sequence[EventSample], fmt: str, generator: random.Random) -> list[EventSample] | None:
    """Draw three rows, with both labels for nli; None if there are too few."""
    pools = [_moderate(candidates)]
    if fmt == "nli":
        pools = [_moderate([row for row in candidates if row.answers == [label]]) for label in NLI_LABELS]
    for pool in pools:
        generator.shuffle(pool)
    if not all(pools):
        return None
    drawn = [pool.pop() for pool in pools] if fmt == "nli" else []
    rest = [row for pool in pools for row in pool]
    generator.shuffle(rest)
    # Rows with distinct passages go first, as a repeated passage teaches less.
    seen = {normalise(row.context) for row in drawn}
    first: list[EventSample] = []
    repeats: list[EventSample] = []
    for row in rest:
        context = normalise(row.context)
        (repeats if context in seen else first).append(row)
        seen.add(context)
    drawn = [*drawn, *first, *repeats][:SHOTS]
    generator.shuffle(drawn)
    return drawn if len(drawn) == SHOTS else None


def _moderate(rows: Sequence[EventSample]) -> list[EventSample]:
    ordered = sorted(rows, key=lambda row: (len(row.context.split()), row.dataset, row.id))
    moderate = sum(len(row.context.split()) <= MODERATE_WORDS for row in ordered)
    return ordered[: max(moderate, LEAST_CHOICE)]


def _content(sample: EventSample) -> tuple[str, str]:
    return normalise(sample.context), normalise(sample.question)
