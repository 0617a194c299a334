"""Promises of all rows of all sources, from the small raw files and, if available, the published ones (read once)."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest
import yaml

from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import EventSample, Split
from d2e_sft.util.answers import words
from data_builders.dataset import CHECKSUM_DIFFERS, describe_file
from data_builders.raw.characters import decode_characters
from data_builders.raw.files import locate_files
from data_builders.raw.reader import read_bytes
from data_builders.refine.relevance import Asked, best_occurrence
from data_builders.refine.rules import RefinerOptions, refine_samples
from data_builders.sources import SOURCES
from data_builders.text.sentences import split_sentences
from tests.data_builders.reading import letters, published_rows, rows_of_split

COUNTS = yaml.safe_load(Path(__file__).with_name("counts.yaml").read_text(encoding="utf-8"))
SETTINGS = {
    "boxes": ("boxes=3", "operations=2", "train_samples=200", "test_samples=50"),
    "habit": ("train_samples=20", "dev_samples=10", "test_samples=10"),
    "revised": ("train_samples=2",),
}
# This package words the questions of these; people or the publishers' templates word the others.
WORDED_HERE = ("boxes", "cqa", "crepe", "habit", "matres", "openpi", "openpi2")
# All questions of these end with a question mark; others are hypotheses or search queries, or some lack it.
END_WITH_A_MARK = ("alphanli", "boxes", "cpi_facts", "cqa", "ecare", "ester", "habit", "ifqa", "matres", "tempreason")
# Free-text answers that must be in the context: one of the accepted answers, or every part of the answer.
ANY_ANSWER_IN_CONTEXT = ("nq_swap", "tempreason", "timeqa")
EVERY_ANSWER_IN_CONTEXT = ("cqa", "ester", "habit", "revised")

# Independent of `decode_characters`.
_LEFT_OVER = re.compile(r'&#\w+;|&(amp|quot|lt|gt|nbsp|apos);|"{4,}|\'{4,}|[\0-\t\v-\x1f\x7f-\x9f\ufffd鈥]')
_DOUBLED_WORD = re.compile(r"\b([a-z]{2,}) \1\b")  # names repeat words too ("Buy Buy Baby")


def _spread(rows: list[EventSample], most: int) -> list[EventSample]:
    """About `most` rows, evenly spread."""
    return rows[:: max(1, len(rows) // most)]


@pytest.fixture(params=["small", "published"])
def splits(request: pytest.FixtureRequest, name: str) -> list[list[EventSample]]:
    """The rows of each split of a source from the small or the published raw files."""
    if request.param == "published" and not SOURCES[name].inputs:
        pytest.skip("generated: there are no published files")
    folder = request.getfixturevalue("unchanged_raw" if request.param == "small" else "published_raw")
    found = [rows_of_split(folder, name, split, *SETTINGS.get(name, ())) for split in SOURCES[name].splits]
    return [rows for rows in found if rows] or pytest.skip(f"no raw file of {name}")


@pytest.fixture
def samples(splits: list[list[EventSample]]) -> list[EventSample]:
    """About 1,000 rows of each split."""
    return [row for rows in splits for row in _spread(rows, 1_000)]


every_source = pytest.mark.parametrize("name", SOURCES)


@every_source
def test_texts_have_no_traces_of_their_files(samples: list[EventSample]) -> None:
    for sample in samples:
        for text in (sample.context, sample.question, *sample.options, *sample.answers, *sample.habit):
            assert decode_characters(text) == (text, frozenset()), sample.id
            assert not _LEFT_OVER.search(text), sample.id


@every_source
def test_questions_ask(name: str, samples: list[EventSample]) -> None:
    for sample in samples:
        assert sample.question == sample.question.strip(), sample.id
        assert sample.context not in sample.question or not sample.context, sample.id
        if name in END_WITH_A_MARK:
            assert sample.question.endswith(("?", '?"')), (sample.id, sample.question)
        if name in WORDED_HERE:
            assert not _DOUBLED_WORD.search(sample.question), (sample.id, sample.question)
            assert sample.question[0].isupper(), (sample.id, sample.question)
            assert sample.question.count("(") == sample.question.count(")"), (sample.id, sample.question)
        if name == "cqa" and "asked" in sample.meta:  # derived
            assert ("if it were not for" in sample.question) == (sample.relation == "counterfactual"), sample.id


@every_source
def test_answers_are_where_the_format_has_them(name: str, samples: list[EventSample]) -> None:
    for sample in samples:
        context = sample.context.casefold()
        assert not sample.candidates or set(sample.answers) <= set(sample.candidates), sample.id
        if name in ANY_ANSWER_IN_CONTEXT:
            assert any(answer.casefold() in context for answer in sample.answers), sample.id
        if name in EVERY_ANSWER_IN_CONTEXT:
            parts = sample.meta.get("spans", sample.answers)
            assert all(part.casefold() in context for part in parts), sample.id


@every_source
def test_the_imagined_view_shows_neither_context_nor_answer(name: str, samples: list[EventSample]) -> None:
    wording = load_prompt_set("default")
    for sample in _spread(samples, 200):
        another = sample.model_copy(update={"context": "Another text.", "refined_context": None, "answers": ["x"]})
        shown = wording.messages(sample, "imagined")
        assert shown == wording.messages(another, "imagined"), sample.id
        if name in WORDED_HERE and not sample.options:
            assert not any(answer.casefold() in sample.question.casefold() for answer in sample.answers), sample.id


@every_source
def test_refined_contexts_keep_what_is_needed(splits: list[list[EventSample]]) -> None:
    for split in splits:
        rows = _spread(split, 100)
        for before, after in zip(rows, refine_samples(rows, RefinerOptions()), strict=True):
            _check_refined(before, after)


def _check_refined(before: EventSample, after: EventSample) -> None:
    context, refined = split_sentences(before.context), split_sentences(after.refined_context or "")
    assert refined or not context, after.id
    assert not [part for part in refined if re.fullmatch(r"\W*\d+\W*", part) and part != before.context], after.id
    if before.refined_context is not None:
        assert after is before  # exact by its source
        return
    kept = " ".join((after.refined_context or "").split())
    remaining = iter(words(before.context))
    assert all(word in remaining for word in words(kept)), after.id
    if evidence := after.meta.get("evidence"):  # procedures: always with the latest step, whole
        assert set(evidence) <= set((after.refined_context or "").split("\n")), after.id
    for text in [*Asked(after).answers, *after.meta.get("events", []), *after.meta.get("chain", [])]:
        stays = f" {' '.join(words(text))} " in f" {' '.join(words(kept))} "
        assert stays or not best_occurrence([before.context], text, [0]), after.id


@pytest.mark.parametrize(("name", "split", "settings", "field", "counts"), COUNTS)
def test_a_split_has_the_known_counts(
    published_raw: Path, name: str, split: Split, settings: list[str], field: str, counts: dict[str, int]
) -> None:
    found = published_rows(published_raw, name, split, *settings)
    values = [getattr(sample, field) for sample in found]
    assert Counter(value[0] if isinstance(value, list) else value for value in values) == counts
    assert len({sample.id for sample in found}) == len(found)
    assert {(sample.meta.get("source_dataset", sample.dataset), sample.split) for sample in found} == {(name, split)}


@pytest.mark.parametrize("name", ["tracie", "mctaco", "ecare", "timeqa", "ester", "cqa", "cosmosqa", "ifqa"])
def test_train_and_test_share_no_context(published_raw: Path, name: str) -> None:
    # Passages of IfQA recur with other questions.
    train, test = (
        {
            letters(one.question if name == "ifqa" else one.context)
            for one in published_rows(published_raw, name, split)
        }
        for split in get_args(Split)[::2]
    )
    assert not train & test


@pytest.mark.parametrize("name", [name for name, source in SOURCES.items() if source.official])
def test_raw_files_have_the_recorded_checksums(published_raw: Path, name: str) -> None:
    source, found = SOURCES[name], {}
    for split in source.splits:
        found |= {item.file: item.path for item in locate_files(source, [split], published_raw).files.values()}
    others = {file: published_raw / source.raw_folder / file.name for file in source.others}
    for file, path in {**found, **{file: path for file, path in others.items() if path.is_file()}}.items():
        described = describe_file(file, path)
        assert described["checksum"] != CHECKSUM_DIFFERS, file.name
        assert file.bytes in (0, described["bytes"])


def test_every_tracie_sample_is_a_raw_row_with_its_label(published_raw: Path) -> None:
    lines = (published_raw / "tracie/iid/tracie_test.txt").read_text(encoding="utf-8").split("\n")
    for sample in published_rows(published_raw, "tracie", "test"):
        rebuilt = f"event: {sample.question} story: {sample.context} answer: {sample.answers[0]}"
        # Some of the double quotes are CSV's.
        assert lines[sample.meta["line"] - 1].replace('"', "").split() == rebuilt.replace('"', "").split()


def test_timeqa_excerpts_are_pieces_of_their_pages(published_raw: Path) -> None:
    excerpts = {s.id: s.context for s in published_rows(published_raw, "timeqa", "train")}
    pages = {s.id: s.context for s in published_rows(published_raw, "timeqa", "train", "context=page")}
    assert max(len(text.split()) for text in excerpts.values()) <= 600
    # A page that fits is shown whole.
    assert all(letters(excerpts[name]) == letters(page) for name, page in pages.items())
    # The others begin and end with a sentence or with the page; only in three does a list have the answer.
    assert not [text for text in excerpts.values() if text[:1].islower()]
    lines = read_bytes(published_raw / "timeqa/human_train.hard.json.gzip").splitlines()
    ends = "".join(json.loads(line)["context"].strip()[-300:] for line in lines)
    cut = [text for text in excerpts.values() if text[-1] not in ".!?\"'”" and text[-200:] not in ends]
    assert len(cut) == 3


def test_the_events_of_matres_are_marked_in_order_in_both_contexts(published_raw: Path) -> None:
    rows = published_rows(published_raw, "matres", "dev")
    for one in rows:
        assert one.context.index("<e1>") < one.context.index("<e2>")
        assert one.refined_context.count("<e1>") == one.refined_context.count("<e2>") == 1
    priors = Counter(prior for one in rows for prior in one.meta["conflicts_with"])
    assert priors == {"narrative": 3_171, "tense": 1_093, "roberta_erp": 3_862}
