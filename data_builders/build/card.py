"""The dataset card: a build's manifest as the Hub's README.md; the same manifest gives the same bytes.

The Hub and `datasets.load_dataset` read its front matter: the licences, and the file of each split.
"""

import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jinja2
import yaml

from d2e_sft.util.markup import harmless_markdown, harmless_yaml, one_line
from data_builders.build.passages import DISTRACTORS, UNANSWERABLE
from data_builders.build.suites import SUITES
from data_builders.build.swapping import SHARES
from data_builders.dataset import restricted, rows_of
from data_builders.raw.source import SPLITS, SourceOptions
from data_builders.refine.rules import RefinerOptions
from data_builders.sources import SOURCES
from data_builders.swap.candidates import SwapOptions

CARD_NAME = "README.md"
_TEMPLATE = Path(__file__).with_name("card.md.jinja")
# Licences that have a name on the Hub, which is the first word of a source's licence in lower case.
_HUB_LICENCES = {"unknown", "apache-2.0", "bsd-3-clause", "cc-by-4.0", "cc-by-nc-sa-4.0", "cc-by-sa-3.0", "mit"}
_TASKS = {
    "nli": "text-classification",
    "scq": "multiple-choice",
    "mcq": "multiple-choice",
    "qa": "question-answering",
    "chat": "text-generation",
}
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))

Manifest = Mapping[str, Any]


def render_card(manifest: Manifest) -> str:
    """Return the text of the card; datasets without rows are left out."""
    datasets = {name: dataset for name, dataset in manifest["datasets"].items() if rows_of(dataset)}
    entries = [
        {"name": name, "split": split, "dataset": dataset, **entry}
        for name, dataset in datasets.items()
        for split, entry in dataset["splits"].items()
    ]
    relations = {relation for entry in entries for relation in entry["rows_by_relation"]}
    about_events = relations != {"none"}
    suite = manifest.get("suite")
    title = f"{'Event-reasoning samples' if about_events else 'Samples'} of {', '.join(datasets)}"
    title = SUITES[suite].title if suite else title
    templates = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, autoescape=False)
    templates.filters.update(cell=_cell, row=_row, harmless=harmless_markdown)
    templates.filters["counted"] = lambda counts: ", ".join(f"{count:,} {name}" for name, count in counts.items())
    templates.filters["link"] = lambda name, url: f"[{name}]({url})" if url else name
    templates.filters["yaml"] = lambda content: yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    # A fence that no backticks in the text close.
    templates.filters["fence"] = lambda text: "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return templates.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        manifest=manifest,
        datasets=datasets,
        entries=entries,
        title=title,
        about_events=about_events,
        relations=relations,
        front_matter=harmless_yaml(_front_matter(manifest, datasets, title, about_events=about_events)),
        total=sum(map(rows_of, datasets.values())),
        closed=restricted(manifest),
        tagged=[entry for entry in entries if "rows_by_subset" in entry],
        decoded=[entry for entry in entries if "rows_decoded" in entry],
        refined=[entry for entry in entries if entry.get("rows_refined_unchanged") is not None],
        files=[(name, file) for name, dataset in datasets.items() for file in dataset["files"]],
        tagging=_tagging(manifest.get("tags")),
        command=build_command(manifest, "OUT"),
        descriptions=[d["described_by"] for d in manifest["datasets"].values() if "described_by" in d],
    )


def _front_matter(manifest: Manifest, datasets: Manifest, title: str, *, about_events: bool) -> dict[str, Any]:
    texts = (dataset["licence"].lower() for dataset in datasets.values())
    ids = ("unknown" if name.startswith("not stated") else name.split(" ")[0] for name in texts)
    licences = sorted({name if name in _HUB_LICENCES else "other" for name in ids})
    rows = sum(map(rows_of, datasets.values()))
    files = [
        {"split": "validation" if split == "dev" else split, "path": f"{split}.parquet"}
        for split in SPLITS
        if f"{split}.parquet" in manifest["outputs"]
    ]
    described = any("described_by" in dataset for dataset in datasets.values())
    return {
        "pretty_name": title,
        "license": licences if len(licences) > 1 else licences[0],
        **({} if described else {"language": ["en"]}),  # the language of a user's own data is unknown
        "task_categories": sorted({_TASKS[dataset["format"]] for dataset in datasets.values()}),
        "size_categories": [next((name for limit, name in _SIZES if rows < limit), "1M<n<10M")],
        "tags": [*(["event-reasoning"] if about_events else []), "d2e-sft"],
        "configs": [{"config_name": "default", "data_files": files}],
    }


def build_command(manifest: Manifest, out: str | None = None) -> str:
    """Return the call of `d2e data build` that wrote a build, without `--out` if no folder is given."""
    options, suite = manifest["options"], manifest.get("suite")
    least, most = options["context_words"]
    valued = {
        "--suite": suite,
        "--datasets": None if suite else ",".join(options["datasets"]),
        "--out": out,
        "--seed": manifest["seed"],
        **{f"--{flag.replace('_', '-')}": "" for flag in ("skip_bad", "allow_shortfall") if options.get(flag)},
        "--size": options.get("size") or None,
        "--min-context-words": least,
        "--max-context-words": most,
        **{f"--{flag}": f"{part['share']:g}" for flag in (*SHARES, *UNANSWERABLE) if (part := manifest.get(flag))},
        "--refusal": options.get("refusal"),
        "--distractors": manifest.get(DISTRACTORS, {}).get("count"),
    }
    words = [word for flag, value in valued.items() if value is not None for word in (flag, str(value)) if word]
    for name in manifest.get("benchmark", {}).get("kept_apart_from", ()):
        words += ["--against", name] if name not in SUITES else []  # the instruction set is always apart from suites
    if judge := manifest.get("judge"):
        words += ["--judge", judge["backend"], "--judge-model", str(judge["model"])]
        words += ["--judge-jobs", ",".join(judge["jobs"])]
    # Settings that differ from their defaults.
    settings = {
        "refine": (RefinerOptions().model_dump(), options["refine"]),
        "swap": (SwapOptions().describe(), options.get("swap", {})),
    }
    for name, dataset in manifest["datasets"].items():
        model = SOURCES[name].options if name in SOURCES else SourceOptions  # own data has those of every source
        settings[name] = (model().model_dump(), dataset["options"])
    for name, (defaults, chosen) in settings.items():
        words += [f"{name}.{key}={value}" for key, value in chosen.items() if value != defaults.get(key)]
    return shlex.join(["d2e", "data", "build", *words])


def _tagging(tags: Mapping[str, Any] | None) -> str:
    """Return the call of `d2e data tag` that the rows' tags come from; empty without tags."""
    if tags is None:
        return ""
    threshold = f"{tags['threshold']:g}"
    options = {"--model": tags.get("model"), "--by": tags.get("by"), "--threshold": threshold}
    options |= {"--shots": tags.get("shots"), "--prompt-set": tags.get("prompt_set"), "--out": "TAGGED"}
    words = [str(word) for option in options.items() if option[1] is not None for word in option]
    return shlex.join(["d2e", "data", "tag", "OUT", *words])


def _cell(text: str) -> str:
    """Escape text so that it neither ends a table's cell nor is read as HTML."""
    return harmless_markdown(one_line(text))


def _row(cells: Iterable[str | int]) -> str:
    return f"| {' | '.join(_cell(f'{cell:,}' if isinstance(cell, int) else cell) for cell in cells)} |"
