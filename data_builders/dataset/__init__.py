"""The files of a built dataset.

Rows are read as sets and described as in the manifest; others ask the manifest what it says of them.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from d2e_sft.data.built import read_manifest
from d2e_sft.data.foreign import refuse_foreign
from d2e_sft.data.sample import EventSample, Split, read_samples
from d2e_sft.util.answers import answer_key, has_refusal, look_alikes, option_key, visible_text
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import sha256_of
from data_builders.raw.characters import DECODED
from data_builders.raw.source import SPLITS, RawFile
from data_builders.sources.reading import has_answer, repeats_answer

PROJECT = "d2e-sft"
EXPORT = "export"  # entry of a manifest next to pairs for other trainers
CHECKSUM_EQUAL = "equals the published file"
CHECKSUM_UNKNOWN = "no published checksum is known"
CHECKSUM_OWN = "own file"
CHECKSUM_DIFFERS = "differs from the published file"
REDISTRIBUTION_ALLOWED = "allowed by the licence"
_OFTEN = 3  # rows with one answer that their contexts lack, from which on it may be a refusal


def is_ours(out: Path, *, exported: bool = False) -> bool:
    """Return whether the folder has the manifest of a build, or of an export."""
    try:
        return (EXPORT in read_manifest(out)) == exported
    except UserError:
        return False


def rows_of(dataset: Mapping[str, Any]) -> int:
    """Return the number of rows in all splits of a dataset's entry."""
    return sum(int(split["rows_written"]) for split in dataset["splits"].values())


def restricted(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return the datasets with rows that must not be republished, and why."""
    return {
        name: dataset["redistribution"]
        for name, dataset in manifest["datasets"].items()
        if rows_of(dataset) and dataset["redistribution"] != REDISTRIBUTION_ALLOWED
    }


def describe_outputs(paths: Iterable[Path]) -> dict[str, Any]:
    """Return size and checksum of each file by its name."""
    return {path.name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)} for path in sorted(paths)}


def describe_file(file: RawFile, path: Path) -> dict[str, Any]:
    """Return one raw file's entry, with size and checksum of the bytes that were read."""
    digest = sha256_of(path)
    checksum = CHECKSUM_EQUAL if digest == file.sha256 else CHECKSUM_DIFFERS
    if file.own or not file.sha256:
        checksum = CHECKSUM_OWN if file.own else CHECKSUM_UNKNOWN
    return {
        "name": file.name,
        "url": file.url,
        "commit": file.commit,
        "bytes": path.stat().st_size,
        "sha256": digest,
        "checksum": checksum,
        "substitute": file.substitute,
    }


@dataclass(frozen=True)
class SampleSet:
    """Samples and their name in reports."""

    name: str
    samples: list[EventSample]


def read_set(path: Path, splits: Collection[Split] = SPLITS) -> SampleSet:
    """Return all rows of a `.parquet` or `.jsonl` file, or those of the wanted splits of a build folder.

    UserError if the path does not exist, the folder has none of the splits, or a row is bad.
    """
    files = files_of(path, splits)
    for file in () if path.is_dir() else files:
        refuse_foreign(file)
    name = path.resolve().name if path.is_dir() else path.stem
    return SampleSet(name, [sample for file in files for sample in read_samples(file)])


def files_of(path: Path, splits: Collection[Split] = SPLITS) -> list[Path]:
    """Return the files that `read_set` reads; its errors, without those of rows."""
    if not path.is_dir():
        return [path]
    files = [path / f"{split}.parquet" for split in SPLITS if split in splits]
    present = [file for file in files if file.is_file()]
    if not present:
        raise UserError(
            f"{path}: a folder without {' or '.join(file.name for file in files)}; expected a build folder",
            remedy="name the folder given to `d2e data build --out`, or a .parquet or .jsonl file of EventSample rows",
        )
    return present


def answerless(rows: Sequence[EventSample]) -> Iterator[str]:
    """Yield warnings of free answers that their non-empty contexts lack: usual refusals, and others from 5 % on."""
    read = [row for row in rows if row.format in ("qa", "chat") and row.context.strip() and is_answerable(row)]
    without = [row for row in read if not has_answer(row)]
    refusals = Counter(row.answers[0] for row in without if has_refusal(row.answers[0], whole=True))
    if refusals:
        listed = ", ".join(f"{answer!r} ({count:,} rows)" for answer, count in refusals.items())
        yield (
            f"{refusals.total():,} of {len(read):,} answers look like refusals, and their contexts lack them: "
            f"{listed}; if they mean that the context does not say, declare them: `refusal: [{', '.join(refusals)}]`"
        )
    lacking = [row for row in without if row.answers[0] not in refusals]
    if lacking and 20 * len(lacking) >= len(read):
        yield _lack(lacking, len(read))


def _lack(lacking: Sequence[EventSample], read: int) -> str:
    what = f"{len(lacking):,} of {read:,} contexts lack their answer (the first: {lacking[0].id})"
    [(key, count)] = Counter(answer_key(row.answers[0]) for row in lacking).most_common(1)
    if count >= _OFTEN and 2 * count > len(lacking):
        answer = next(row.answers[0] for row in lacking if answer_key(row.answers[0]) == key)
        meaning = f"if {answer!r} ({count:,} rows) means that they do not say, declare it"
        return f"{what}; {meaning}: `refusal: [{answer}]`, with others that mean so"
    remedy = "are the columns right?" if 2 * len(lacking) > read else "shorten the answers to words of the context"
    return f"{what}; such rows teach to answer from memory: {remedy}"


def is_answerable(row: EventSample) -> bool:
    """Return whether the row's context is meant to have the answer: a declared refusal is an answer of its own."""
    return row.subset != "unanswerable"


def repeated_rows(samples: Sequence[EventSample]) -> list[tuple[str, str]]:
    """Return (id, id of the first) of each sample that repeats an earlier one in context, question and answers."""
    first: dict[Hashable, str] = {}
    repeats = []
    for sample in samples:
        turns = tuple((turn.role, turn.content) for turn in sample.conversation.turns) if sample.conversation else ()
        key = (sample.context, sample.question, tuple(sample.options), tuple(sample.answers), turns)
        if (met := first.setdefault(key, sample.id)) != sample.id:
            repeats.append((sample.id, met))
    return repeats


def equal_options(samples: Sequence[EventSample]) -> dict[str, list[str]]:
    """Return the place of each row with options that look or normalise alike, and these: a text may fit several."""
    alike = {place_of(row): look_alikes(row.options, lambda text: option_key(visible_text(text))) for row in samples}
    return {place: [option for group in groups for option in group] for place, groups in alike.items() if groups}


def equal_ids(samples: Sequence[EventSample]) -> list[str]:
    """Return the place of each row whose id looks like an earlier one, with both in ASCII."""
    by_id = {row.id: row for row in samples}
    pairs = ((first, later) for first, *rest in look_alikes(by_id, visible_text) for later in rest)
    return [f"{place_of(by_id[later])}: {later!a} like {first!a}" for first, later in pairs]


def place_of(row: EventSample) -> str:
    """Return file and line of a row of own data, otherwise its id."""
    if "line" not in row.meta:
        return row.id
    file = str(row.meta["source"])
    return f"{file}, {'item' if file.endswith(('.parquet', '.json')) else 'line'} {row.meta['line']}"


def source_of(sample: EventSample) -> str:
    """Return the name of a sample's source, whatever name a suite gives its dataset."""
    return str(sample.meta.get("source_dataset", sample.dataset))


def describe_rows(samples: Sequence[EventSample]) -> dict[str, Any]:
    """Return the manifest's counts of rows: by relation, subset, decoded texts and label, and what refining left."""
    labels = Counter(sample.answers[0] for sample in samples if sample.format == "nli")
    subsets = Counter(sample.subset for sample in samples if sample.subset)
    decoded = Counter(kind for sample in samples for kind in sample.meta.get(DECODED, ()))
    return {
        "rows_written": len(samples),
        "rows_by_relation": dict(sorted(Counter(sample.relation for sample in samples).items())),
        **({"rows_by_subset": dict(sorted(subsets.items()))} if subsets else {}),
        **({"rows_decoded": dict(sorted(decoded.items()))} if decoded else {}),
        "rows_with_answer_in_context": sum(repeats_answer(row) for row in samples if row.format != "nli"),
        "nli_labels": dict(sorted(labels.items())),
        **describe_refinement(samples),
    }


def describe_refinement(samples: Sequence[EventSample]) -> dict[str, Any]:
    """Return what is left of the contexts, as the manifest has it; None without words in refined contexts.

    `refined_share_of_words` is the words of refined contexts divided by those of their contexts, to three places.
    `rows_refined_unchanged` counts refined contexts that equal the context: distillation teaches nothing there.
    """
    refined = [(sample.context, sample.refined_context) for sample in samples if sample.refined_context is not None]
    words, kept = (sum(len(pair[side].split()) for pair in refined) for side in (0, 1))
    return {
        "refined_share_of_words": round(kept / words, 3) if words else None,
        "rows_refined_unchanged": sum(context == shorter for context, shorter in refined) if words else None,
    }
