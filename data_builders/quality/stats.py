"""Statistics of a data set: counts, lengths of the three views, labels, and baselines without the context."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from d2e_sft.config.objectives import VIEWS, View
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import FORMATS, NLI_LABELS, RELATIONS, EventSample
from d2e_sft.util.progress import Progress
from d2e_sft.util.table import Table, percent
from data_builders.dataset import SampleSet, describe_refinement
from data_builders.quality.context_free import INSTALL_SKLEARN, has_sklearn, hypothesis_alone
from data_builders.raw.source import SPLITS

WORDS = "words"
_BATCH = 1_000
_ALONE = (
    "Hypothesis only: accuracy of a classifier on word n-grams of the hypothesis, without the context. It is "
    "cross-validated in five parts, and rows with the same premise are never in both training and test part; ± is one "
    "standard error. Labels that can be told without the premise do not ask for reading."
)

Measure = Callable[[Sequence[EventSample], View], list[int]]  # the length of each sample's prompt of a view
_Update = Callable[[int], object]  # is called with the number of rows that were measured once more


def compute_stats(
    sets: Sequence[SampleSet], *, tokenizer: str, prompt_set: str = "default", seed: int = 0
) -> dict[str, Any]:
    """Return statistics of every set, split and dataset (`groups`) as plain values, as `--json` writes them.

    `left_out` says which measure of nli rows is missing, why and what to do, if it is.

    Args:
        tokenizer: a name for `d2e_sft.model.loading`, or `words`.
        seed: of the folds of the hypothesis-only baseline.
    """
    measure = _measure(tokenizer, prompt_set)
    members: dict[tuple[int, int, str], list[EventSample]] = defaultdict(list)
    for place, data in enumerate(sets):
        for sample in data.samples:
            members[place, SPLITS.index(sample.split), sample.dataset].append(sample)
    rows = sum(map(len, members.values()))
    nli = sum(sample.format == "nli" for samples in members.values() for sample in samples)
    groups = []
    with Progress(total=len(VIEWS) * rows + nli, desc="statistics", unit="row") as bar:
        for (place, split, dataset), samples in sorted(members.items()):  # since the rows of a drawn set are shuffled
            bar.set_postfix_str(f"{dataset} {SPLITS[split]}")
            name = {"data": sets[place].name, "dataset": dataset, "split": SPLITS[split]}
            groups.append(name | _describe(samples, measure, seed, bar.update))
    left_out = f"hypothesis only: needs scikit-learn ({INSTALL_SKLEARN})"
    return {
        "tokenizer": tokenizer,
        "unit": "words" if tokenizer == WORDS else "tokens",
        "rows": rows,
        **({"left_out": left_out} if nli and not has_sklearn() else {}),
        "groups": groups,
    }


def _measure(tokenizer: str, prompt_set: str) -> Measure:
    wording = load_prompt_set(prompt_set)
    if tokenizer == WORDS:
        return lambda samples, view: [
            sum(len(message["content"].split()) for message in wording.messages(sample, view)) for sample in samples
        ]
    # Imported here, since transformers takes seconds.
    from d2e_sft.data.views import ViewEncoder
    from d2e_sft.model.loading import load_tokenizer

    loaded, encoder_decoder = load_tokenizer(tokenizer)
    encoder = ViewEncoder(loaded, wording, VIEWS, encoder_decoder=encoder_decoder)
    return lambda samples, view: [len(ids) for ids in encoder.all_prompt_ids(samples, view)]


def _describe(samples: Sequence[EventSample], measure: Measure, seed: int, update: _Update) -> dict[str, Any]:
    counts = Counter[tuple[str, str]]((sample.relation, sample.format) for sample in samples)
    described: dict[str, Any] = {
        "rows": len(samples),
        "counts": [
            {"relation": relation, "format": fmt, "rows": counts[relation, fmt]}
            for relation in RELATIONS
            for fmt in FORMATS
            if counts[relation, fmt]
        ],
        "prompt_lengths": {},
    }
    for view in VIEWS:
        shown = [sample for sample in samples if view != "refined" or sample.refined_context is not None]
        lengths = list[int]()
        for start in range(0, len(shown), _BATCH):
            lengths += measure(shown[start : start + _BATCH], view)
            update(len(lengths) - start)
        update(len(samples) - len(shown))
        if lengths:
            p5, median, p95 = map(float, np.percentile(lengths, [5, 50, 95]))
            mean = round(float(np.mean(lengths)), 1)
            longest = {"p5": p5, "median": median, "p95": p95, "longest": max(lengths)}
            described["prompt_lengths"][view] = {"n": len(lengths), "mean": mean, **longest}
    nli = [sample for sample in samples if sample.format == "nli"]
    labels = Counter(sample.answers[0] for sample in nli)
    alone = asdict(hypothesis_alone(nli, seed)) if nli else None
    update(len(nli))
    return described | {
        "nli_labels": {label: labels[label] for label in NLI_LABELS} if nli else {},
        **describe_refinement(samples),
        "hypothesis_alone": alone,
    }


def stats_tables(stats: dict[str, Any]) -> list[Table]:
    """Return the tables of rows, prompt lengths, refinement and labels of nli; those without rows are left out."""
    groups = stats["groups"]
    several = len({group["data"] for group in groups}) > 1
    keys = [*(["data"] if several else []), "dataset", "split"]
    names = [[group[key] for key in keys] for group in groups]
    named = list(zip(names, groups, strict=True))
    counts = [[*name, *kind.values()] for name, group in named for kind in group["counts"]]
    counts.append([*[""] * (len(keys) + 1), "all", stats["rows"]])
    lengths = [
        [*name, view, size["n"], *(f"{size[key]:,.0f}" for key in ("mean", "p5", "median", "p95")), size["longest"]]
        for name, group in named
        for view, size in group["prompt_lengths"].items()
    ]
    heads = ["view", "n", f"mean {stats['unit']}", "5 %", "median", "95 %", "longest"]
    return [
        Table.of([*keys, "relation", "format", "rows"], counts, keys=len(keys)),
        Table.of([*keys, *heads], lengths, keys=len(keys)),
        *refinement_tables(keys, [(name, group["rows"], group) for name, group in named]),
        *_nli_tables(keys, [(name, group) for name, group in named if group["nli_labels"]], stats.get("left_out")),
    ]


def _nli_tables(keys: list[str], named: list[tuple[list[str], Any]], left_out: str | None) -> list[Table]:
    if not named:
        return []
    lines = []
    for name, group in named:
        alone = group["hypothesis_alone"]
        accuracy = "too few rows" if left_out is None else "not measured"
        if alone["accuracy"] is not None:
            accuracy = f"{percent(alone['accuracy'])} ± {percent(alone['standard_error'])}"
        share = percent(alone["majority_share"])
        lines.append([*name, alone["n"], alone["contexts"], *group["nli_labels"].values(), share, accuracy])
    columns = [*keys, "n", "contexts", *NLI_LABELS, "majority label, %", "hypothesis only, %"]
    return [Table.of(columns, lines, notes=[f"Left out: {left_out}." if left_out else _ALONE], keys=len(keys))]


def refinement_tables(keys: Sequence[str], groups: Sequence[tuple[Sequence[str], int, Any]]) -> list[Table]:
    """Return a table of what the refiner left of each group's contexts; none without refined contexts.

    A group is its name, its rows, and its refinement as the manifest has it (`describe_refinement`).
    """
    refined = [group for group in groups if group[2]["refined_share_of_words"] is not None]
    lines = [
        [*name, f"{same:,}", f"{percent(same / rows)} %", f"{percent(entry['refined_share_of_words'])} %"]
        for name, rows, entry in refined
        for same in [entry["rows_refined_unchanged"]]
    ]
    if len(refined) > 1:
        rows, same = sum(group[1] for group in refined), sum(group[2]["rows_refined_unchanged"] for group in refined)
        lines.append(["all", *[""] * (len(keys) - 1), f"{same:,}", f"{percent(same / rows)} %", ""])
    columns = [*keys, "refined = original", "of the rows", "words kept"]
    return [Table.of(columns, lines, keys=len(keys))] if lines else []
