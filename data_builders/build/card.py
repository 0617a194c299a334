"""The dataset card: a build's manifest as the Hub's README.md, for a reader who has nothing else.

All of it comes from the manifest, so that the same manifest gives the same bytes. The front matter is what the Hub
and `datasets.load_dataset` read: the licences and which file holds which split.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from d2e_sft.util.files import write_whole
from d2e_sft.util.markdown import harmless_markdown, one_line
from data_builders.build.suites import SUITES
from data_builders.dataset.manifest import restricted, rows_of
from data_builders.raw.source import SPLITS
from data_builders.refine.rules import RefinerOptions
from data_builders.sources import SOURCES

CARD_NAME = "README.md"
_PRETTY_NAMES = {
    "piper": "PIPER event-reasoning test sets",
    "piper-10k": "PIPER event-reasoning instruction set",
    "ood": "Event-reasoning out-of-distribution test sets",
    "conflict": "Knowledge-conflict test sets: context against habit",
}
# The Hub's names of licences, by how the sources begin theirs.
_LICENCE_IDS = {
    "Apache-2.0": "apache-2.0",
    "BSD-3-Clause": "bsd-3-clause",
    "CC-BY-4.0": "cc-by-4.0",
    "CC-BY-NC-SA-4.0": "cc-by-nc-sa-4.0",
    "CC-BY-SA-3.0": "cc-by-sa-3.0",
    "MIT": "mit",
}
_TASKS = {
    "nli": "text-classification",
    "scq": "multiple-choice",
    "mcq": "multiple-choice",
    "qa": "question-answering",
    "chat": "text-generation",
}
_SPLIT_NAMES = {"dev": "validation"}  # as the Hub calls it
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
_FIELDS = (
    ("id", "unique within dataset and split"),
    ("dataset", "the source dataset, or the name under which PIPER counts it"),
    ("split", "train, dev or test"),
    (
        "relation",
        "temporal, causal, counterfactual, subevent_conditional, or factual (of no relation of events)",
    ),
    ("format", "nli, scq (one correct option), mcq (one or more) or qa (free text)"),
    ("context", "the passage; for nli the premise"),
    ("refined_context", "the context's parts that have to do with the question; null where none were chosen"),
    ("question", "the question; for nli the hypothesis"),
    ("options", "the candidates of scq and mcq; empty otherwise"),
    ("answers", "nli: positive or negative; scq and mcq: the correct options; qa: every accepted answer"),
    ("meta", "source row, licence and the like, as JSON text"),
)
_SUBSET_FIELDS = (
    ("subset", "aligned, conflict, gold, irrelevant or unanswerable: how the context stands to the habit"),
    ("habit", "what one would answer without reading, in all accepted forms"),
)
_CHAT_FIELDS = (
    ("conversation", "of format chat: the turns before the answer, the context cut out, as JSON text"),
    ("relation", "also none, where nothing is said of it"),
)


def write_card(manifest: Mapping[str, Any], folder: Path) -> Path:
    """Write `README.md` into the folder of a build, from its manifest alone; returns the file."""
    path = folder / CARD_NAME
    write_whole(path, render_card(manifest))
    return path


def render_card(manifest: Mapping[str, Any]) -> str:
    """The card of `write_card` as text."""
    datasets = {name: dataset for name, dataset in manifest["datasets"].items() if rows_of(dataset)}
    title = _title(manifest, datasets)
    front_matter = yaml.safe_dump(_front_matter(manifest, datasets, title), sort_keys=False, allow_unicode=True)
    sections = [
        f"---\n{front_matter}---",
        f"# {_escaped(title)}",
        harmless_markdown(_introduction(manifest, datasets)),
        _warning(manifest),
        _section("Rows", _rows_table(datasets)),
        _section("Licences", _licence_table(datasets)),
        _section("Published and obtained counts", _published_table(manifest)),
        _section("Mixture", _mixture_table(manifest)),
        _section("Kept apart from the benchmark", _kept_apart(manifest)),
        _section("Subsets", _subset_table(datasets)),
        _section("Fields", _field_table(datasets)),
        _section("Decoded texts", _decoded(datasets)),
        _section("Filters", _filter_table(datasets)),
        _section("Refined contexts", _refined(manifest, datasets)),
        _section("Counterfactual swaps", _swaps(manifest)),
        _section("Sources", _source_table(datasets)),
        _section("Notes", _notes(datasets)),
        _section("How to build it again", _rebuild(manifest)),
        _section("Files", _file_table(manifest)),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _title(manifest: Mapping[str, Any], datasets: Mapping[str, Any]) -> str:
    suite = manifest.get("suite")
    what = "Samples" if _of_no_relation(datasets) else "Event-reasoning samples"
    return _PRETTY_NAMES.get(suite, suite) if suite else f"{what} of {', '.join(datasets)}"


def _front_matter(manifest: Mapping[str, Any], datasets: Mapping[str, Any], title: str) -> dict[str, Any]:
    licences = sorted({_licence_id(dataset["licence"]) for dataset in datasets.values()})
    rows = sum(map(rows_of, datasets.values()))
    files = [
        {"split": _SPLIT_NAMES.get(split, split), "path": f"{split}.parquet"}
        for split in SPLITS
        if f"{split}.parquet" in manifest["outputs"]
    ]
    return {
        "pretty_name": title,
        "license": licences if len(licences) > 1 else licences[0],
        # Of own data nobody said its language.
        **({} if any("described_by" in dataset for dataset in datasets.values()) else {"language": ["en"]}),
        "task_categories": sorted({_TASKS[dataset["format"]] for dataset in datasets.values()}),
        "size_categories": [next((name for limit, name in _SIZES if rows < limit), "1M<n<10M")],
        "tags": [*([] if _of_no_relation(datasets) else ["event-reasoning"]), "d2e-sft"],
        "configs": [{"config_name": "default", "data_files": files}],
    }


def _licence_id(licence: str) -> str:
    if licence.startswith("not stated"):
        return "unknown"
    # Case aside: a user's own licence may be written as the Hub writes it.
    said = f"{licence.lower()} "
    return next((name for prefix, name in _LICENCE_IDS.items() if said.startswith(f"{prefix.lower()} ")), "other")


def _introduction(manifest: Mapping[str, Any], datasets: Mapping[str, Any]) -> str:
    rows = sum(map(rows_of, datasets.values()))
    made = f"built by d2e-sft {manifest['version']} with seed {manifest['seed']}"
    number = f"{len(datasets)} dataset{'' if len(datasets) == 1 else 's'}"
    text = f"{rows:,} {'' if _of_no_relation(datasets) else 'event-reasoning '}samples from {number}, {made}."
    if failures := manifest.get("failures"):
        text += f" **Incomplete:** {', '.join(failures)} could not be read and {_is_are(failures)} missing."
    return text


def _of_no_relation(datasets: Mapping[str, Any]) -> bool:
    """Whether no row is about a relation of events."""
    splits = [entry for dataset in datasets.values() for entry in dataset["splits"].values()]
    return {relation for entry in splits for relation in entry["rows_by_relation"]} == {"none"}


def _warning(manifest: Mapping[str, Any]) -> str:
    closed = restricted(manifest)
    if not closed:
        return ""
    lines = [
        "> **Do not publish this data.** Some of its sources do not allow that their rows are published again:",
        ">",
        *(_escaped(f"> - **{name}**: {reason}") for name, reason in closed.items()),
        ">",
        "> Keep it private, or build it without them.",
    ]
    return "\n".join(lines)


def _rows_table(datasets: Mapping[str, Any]) -> str:
    rows = [
        (name, relation, dataset["format"], split, count)
        for name, dataset in datasets.items()
        for split, entry in dataset["splits"].items()
        for relation, count in entry["rows_by_relation"].items()
    ]
    total = ("all", "", "", "", sum(map(rows_of, datasets.values())))
    return _table(("dataset", "relation", "format", "split", "rows"), [*rows, total], numbers=1)


def _licence_table(datasets: Mapping[str, Any]) -> str:
    rows = [
        (f"[{name}]({dataset['homepage']})" if dataset["homepage"] else name, dataset["licence"], _permission(dataset))
        for name, dataset in datasets.items()
    ]
    return _table(("dataset", "licence of the raw data", "publishing its rows again"), rows)


def _permission(dataset: Mapping[str, Any]) -> str:
    closed = restricted({"datasets": {"it": dataset}})
    return f"**no**: {closed['it']}" if closed else str(dataset["redistribution"])


def _published_table(manifest: Mapping[str, Any]) -> str:
    header = ("relation", "dataset", "format", "published", "obtained", "reason for a difference")
    return _table(
        header, [[row[name] for name in (*header[:5], "reason")] for row in manifest.get("published_counts", ())]
    )


def _mixture_table(manifest: Mapping[str, Any]) -> str:
    mixture = manifest.get("mixture")
    if not mixture:
        return ""
    rows = [
        (name, f"{part['ratio']:.2f}", part["asked"], part["drawn"], f"{part['drawn_ratio']:.2f}", part["reason"])
        for name, part in mixture["datasets"].items()
    ]
    header = ("dataset", "ratio %", "wanted", "drawn", "drawn %", "reason for a difference")
    return _table(header, rows)


def _kept_apart(manifest: Mapping[str, Any]) -> str:
    benchmark = manifest.get("benchmark")
    if not benchmark:
        return ""
    text = (
        "No training row comes from the raw row of a test row of "
        f"{', '.join(benchmark['kept_apart_from'])}, has its context or asks its question, "
        "nor shares most of its wording with one."
    )
    if unread := benchmark["not_read"]:
        text += f" Not compared, since their test rows could not be read: {', '.join(unread)}."
    return text


def _subset_table(datasets: Mapping[str, Any]) -> str:
    rows = [
        (name, split, subset, count)
        for name, dataset in datasets.items()
        for split, entry in dataset["splits"].items()
        for subset, count in entry.get("rows_by_subset", {}).items()
    ]
    return _table(("dataset", "split", "subset", "rows"), rows, numbers=1)


def _decoded(datasets: Mapping[str, Any]) -> str:
    rows = [
        (name, split, what, count)
        for name, dataset in datasets.items()
        for split, entry in dataset["splits"].items()
        for what, count in entry.get("rows_decoded", {}).items()
    ]
    if not rows:
        return ""
    text = (
        "Rows whose texts differ from the raw file, which holds what pages and CSV leave in texts; in `meta.decoded`:"
    )
    return f"{text}\n\n{_table(('dataset', 'split', 'decoded', 'rows'), rows, numbers=1)}"


def _field_table(datasets: Mapping[str, Any]) -> str:
    chat = any(dataset["format"] == "chat" for dataset in datasets.values())
    fields = [*_FIELDS, *(_SUBSET_FIELDS if _subset_table(datasets) else ()), *(_CHAT_FIELDS if chat else ())]
    return _table(("field", "content"), [(f"`{name}`", what) for name, what in fields])


def _filter_table(datasets: Mapping[str, Any]) -> str:
    rows = [
        (name, split, step["name"], step["rows_in"], step["rows_out"], step["unit"], step["reason"])
        for name, dataset in datasets.items()
        for split, entry in dataset["splits"].items()
        for step in entry["filters"]
    ]
    return _table(("dataset", "split", "filter", "in", "out", "unit", "why"), rows)


def _refined(manifest: Mapping[str, Any], datasets: Mapping[str, Any]) -> str:
    rows = [
        (name, split, f"{100 * entry['refined_share_of_words']:.1f}")
        for name, dataset in datasets.items()
        for split, entry in dataset["splits"].items()
        if entry["refined_share_of_words"] is not None
    ]
    if not rows:
        return ""
    judge = manifest.get("judge")
    asked = judge is not None and "refine" in judge["jobs"]
    by = f"the language model {judge['model']}" if judge and asked else "rules, without a language model"
    text = f"Whole sentences of the context, in their order, chosen by {by}. Share of the words that were kept:"
    return f"{text}\n\n{_table(('dataset', 'split', 'words kept, %'), rows, numbers=1)}"


def _swaps(manifest: Mapping[str, Any]) -> str:
    swap = manifest.get("swap")
    if not swap:
        return ""
    rows = [(name, done["rows"], done["wanted"], done["swapped"]) for name, done in swap["datasets"].items()]
    text = (
        "In these training rows the answer was replaced by another entity of the same kind, in the contexts too, so "
        "they say what is not so; `meta.swapped` names both entities, and the originals are not among the rows."
    )
    return f"{text}\n\n{_table(('dataset', 'training rows', 'to be swapped', 'swapped'), rows, numbers=3)}"


def _source_table(datasets: Mapping[str, Any]) -> str:
    rows = []
    for name, dataset in datasets.items():
        for file in dataset["files"]:
            where = f"[{file['name']}]({file['url']})" if file["url"] else file["name"]
            remark = f"stands in for the official file: {file['substitute']}" if file["substitute"] else ""
            version = f"`{file['commit']}`" if file["commit"] else ""
            rows.append((name, where, version, f"`{file['sha256']}`", file["checksum"], remark))
    return _table(("dataset", "raw file", "version", "sha256", "checksum", "remark"), rows)


def _notes(datasets: Mapping[str, Any]) -> str:
    lines = [
        _escaped(f"- **{name}**, {topic}: {note}")
        for name, dataset in datasets.items()
        for topic, note in dataset["notes"].items()
    ]
    return "\n".join(lines)


def _rebuild(manifest: Mapping[str, Any]) -> str:
    command = ["d2e", "data", "build", *_arguments(manifest)]
    text = (
        f"With d2e-sft {manifest['version']}, and the raw files of the checksums above, the same bytes come from\n\n"
        f"```console\n$ {shlex.join(command)}\n```"
    )
    own = [dataset["described_by"] for dataset in manifest["datasets"].values() if "described_by" in dataset]
    return "\n\n".join([text, *(_description(each["file"], each["content"]) for each in own)])


def _description(file: str, content: Mapping[str, Any]) -> str:
    """The description of own data, which a reader would have to write anew."""
    said = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", said)), default=0))
    return f"where `{file}` says\n\n{fence}yaml\n{said}{fence}"


def _arguments(manifest: Mapping[str, Any]) -> list[str]:
    options, suite = manifest["options"], manifest.get("suite")
    arguments = ["--suite", suite] if suite else ["--datasets", ",".join(options["datasets"])]
    arguments += ["--out", "OUT", "--seed", str(manifest["seed"])]
    for flag in ("skip_bad", "allow_shortfall"):
        if options.get(flag):
            arguments.append(f"--{flag.replace('_', '-')}")
    if options.get("size"):
        arguments += ["--size", str(options["size"])]
    for flag, bound in zip(("--min-context-words", "--max-context-words"), options["context_words"], strict=True):
        if bound is not None:
            arguments += [flag, str(bound)]
    if share := options.get("swap_test"):
        arguments += ["--swap-test", f"{share:g}"]
    if swap := manifest.get("swap"):
        arguments += ["--swap", f"{swap['share']:g}"]
    for name in manifest.get("benchmark", {}).get("kept_apart_from", ()):
        if name not in SUITES:  # the instruction set is kept apart from the suites by itself
            arguments += ["--against", name]
    if judge := manifest.get("judge"):
        arguments += ["--judge", judge["backend"], "--judge-model", str(judge["model"])]
        arguments += ["--judge-jobs", ",".join(judge["jobs"])]
    return [*arguments, *_settings(manifest)]


def _settings(manifest: Mapping[str, Any]) -> list[str]:
    """`KEY=VALUE` for each option that is not at its default."""
    chosen = {"refine": (RefinerOptions().model_dump(), manifest["options"]["refine"])}
    for name, dataset in manifest["datasets"].items():
        defaults = SOURCES[name].options().model_dump() if name in SOURCES else {}
        chosen[name] = (defaults, dataset["options"])
    return [
        f"{name}.{key}={value}"
        for name, (defaults, options) in chosen.items()
        for key, value in options.items()
        if value != defaults.get(key)
    ]


def _file_table(manifest: Mapping[str, Any]) -> str:
    rows = [(name, entry["bytes"], f"`{entry['sha256']}`") for name, entry in manifest["outputs"].items()]
    return _table(("file", "bytes", "sha256"), rows) + "\n\n`manifest.json` holds all of the above in full."


def _section(title: str, content: str) -> str:
    return f"## {title}\n\n{content}" if content else ""


def _table(header: Sequence[str], rows: Iterable[Iterable[str | int]], *, numbers: int = 0) -> str:
    """A Markdown table, or nothing where it has no rows; the last `numbers` columns are aligned to the right."""
    rule = ["---"] * (len(header) - numbers) + ["---:"] * numbers
    cells = [[_escaped(f"{cell:,}" if isinstance(cell, int) else cell) for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, rule, *cells]) if cells else ""


def _escaped(text: str) -> str:
    """Text that neither ends a table's cell nor is read as HTML."""
    return harmless_markdown(one_line(text))


def _is_are(names: Mapping[str, Any]) -> str:
    return "is" if len(names) == 1 else "are"
