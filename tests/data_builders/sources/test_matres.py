"""MATRES: which events are marked, and which rows go against the order of the text."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from d2e_sft.data.sample import Split
from d2e_sft.util.errors import UserError
from data_builders.sources.matres import OPTIONS
from tests.data_builders.conflict_rows import MATRES_SUBSETS, MATRES_TABLE
from tests.data_builders.reading import read, replace, steps

_FOLDER = Path("conflict/event-temporal/matres")


def _use_table(raw: Path) -> None:
    """A table of character offsets in place of the publishers' features."""
    for name in ("train_features_matres_event_only", "valid_features_matres_event_only", "test_features_matres"):
        (raw / _FOLDER / f"{name}.json").unlink()
    table = raw / "conflict/event-temporal/derived/matres_event_offsets.json"
    table.parent.mkdir()
    table.write_text(MATRES_TABLE)


@pytest.mark.parametrize("positions", ["features", "table"])
@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_the_events_meant_are_marked_and_the_refined_context_has_their_sentences(
    raw: Path, split: Split, positions: str
) -> None:
    if positions == "table":
        _use_table(raw)
    samples = read(raw, "matres", (split,))[split].rows
    assert [sample.context for sample in samples[:3]] == [
        "Ada said no, Ben <e1>said</e1>. It rained. Later Cy <e2>said</e2> that they had agreed.",
        "Ada said no, Ben said. It rained. Later Cy <e1>said</e1> that they had <e2>agreed</e2>.",
        "The barn <e1>burned</e1> after lightning <e2>struck</e2>.",
    ]
    assert samples[0].refined_context == "Ada said no, Ben <e1>said</e1>. Later Cy <e2>said</e2> that they had agreed."
    assert samples[1].refined_context == "Later Cy <e1>said</e1> that they had <e2>agreed</e2>."
    assert samples[1].question == "Does the event <e1>said</e1> start before or after the event <e2>agreed</e2>?"


def test_a_row_is_aligned_where_the_order_of_the_text_is_that_of_time(raw: Path) -> None:
    samples = read(raw, "matres", ("test",))["test"].rows
    assert [(sample.answers, sample.subset) for sample in samples] == [
        (["before"], "aligned"),
        (["after"], "conflict"),
        (["after"], "conflict"),
        (["unknown"], "conflict"),
    ]
    assert all(sample.habit == ["before"] for sample in samples)


def test_pairs_that_annotators_could_not_order_may_be_dropped(raw: Path) -> None:
    found = read(raw, "matres", ("test",), "vague=drop")["test"]
    assert steps(found) == {"pairs with an order": (4, 3)}
    assert not [sample for sample in found.rows if sample.answers == ["unknown"]]


def test_exchanged_pairs_are_asked_the_other_way_round_in_training_alone(raw: Path) -> None:
    both = {share: read(raw, "matres", ("train", "test"), f"exchanged_share={share}") for share in (0, 1)}
    assert both[0]["test"].rows == both[1]["test"].rows
    other = {"before": "after", "after": "before"}
    for as_is, exchanged in zip(both[0]["train"].rows, both[1]["train"].rows, strict=True):
        assert exchanged.answers == [other.get(answer, answer) for answer in as_is.answers]
        assert exchanged.subset == ("aligned" if exchanged.answers == ["before"] else "conflict")
        turned = as_is.context.replace("e1>", "e0>").replace("e2>", "e1>").replace("e0>", "e2>")
        assert exchanged.context == turned
        assert exchanged.meta["exchanged"] is True
    questions = [samples["train"].rows[1].question for samples in both.values()]
    assert questions == [
        "Does the event <e1>said</e1> start before or after the event <e2>agreed</e2>?",
        "Does the event <e1>agreed</e1> start before or after the event <e2>said</e2>?",
    ]


def test_a_share_of_the_pairs_is_exchanged_whatever_else_is_built(raw: Path) -> None:
    drawn = [read(raw, "matres", splits, "exchanged_share=0.5") for splits in (("train",), ("train", "test"))]
    assert drawn[0]["train"].rows == drawn[1]["train"].rows
    exchanged = [bool(sample.meta.get("exchanged")) for sample in drawn[0]["train"].rows]
    assert len(set(exchanged)) == 2


@pytest.mark.parametrize("lists", ["files", "table"])
def test_dev_rows_name_the_priors_that_they_go_against(raw: Path, lists: str) -> None:
    if lists == "table":
        for path in (raw / _FOLDER).glob("*_bias.json"):
            path.unlink()
        (raw / "conflict/event-temporal/derived").mkdir()
        (raw / "conflict/event-temporal/derived/matres_subsets.json").write_text(MATRES_SUBSETS)
    rows = read(raw, "matres", ("dev",))["dev"].rows
    assert [one.meta["conflicts_with"] for one in rows] == [
        ["roberta_erp"],
        ["narrative", "tense", "roberta_erp"],
        ["narrative"],
        ["narrative", "roberta_erp"],
    ]
    assert [one.subset for one in rows] == ["aligned", "conflict", "conflict", "conflict"]


def test_a_prior_tags_dev_rows_alone(raw: Path) -> None:
    def subsets(split: Split, prior: str) -> list[str | None]:
        rows = read(raw, "matres", (split,), f"bias={prior}")[split].rows
        assert not any(one.habit for one in rows)
        return [one.subset for one in rows]

    assert subsets("dev", "tense") == [None, "conflict", None, None]
    assert subsets("dev", "roberta_erp") == ["conflict", "conflict", "aligned", "conflict"]
    assert subsets("test", "roberta_erp") == [None] * 4


def test_a_subset_that_is_none_of_the_rows_is_refused(raw: Path) -> None:
    path = raw / _FOLDER / "valid_text_features_matres_roberta_erp_bias.json"
    path.write_text(json.dumps(json.loads(path.read_text())[::-1]))
    with pytest.raises(UserError, match=r"roberta_erp_bias\.json, item 2: no later row than the last of .* equals it"):
        read(raw, "matres", ("dev",))


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("test_text", '"labels": [0]', '"labels": [4]', r"item 1: labels: got \[4\]; expected a list of one label"),
        ("test_text", '"e1": "burned"', '"e1": "bloomed"', "item 3: e1: got 'bloomed'; expected a word of the text"),
        ("test", '"event_pos": [6, 15]', '"event_pos": [6]', r"item 1: event_pos: got \[6\]; expected two whole"),
        ("test", '"input_ids"', '"ids"', "item 1: input_ids: missing; expected a list of token ids"),
    ],
)
def test_a_bad_row_is_named(raw: Path, file: str, old: str, new: str, message: str) -> None:
    replace(raw / _FOLDER / f"{file}_features_matres.json", old, new)
    with pytest.raises(UserError, match=message):
        read(raw, "matres", ("test",))


def test_texts_and_places_of_different_lengths_are_refused(raw: Path) -> None:
    (raw / _FOLDER / "test_features_matres.json").write_text("[]")
    with pytest.raises(UserError, match=r"item 1: e1: got 'said'; expected an event whose place is item 1 of matres/"):
        read(raw, "matres", ("test",))


def test_the_published_files_have_the_published_counts(published_raw: Path) -> None:
    if not (published_raw / _FOLDER).is_dir():
        pytest.skip(f"{published_raw} lacks {_FOLDER}")
    found = {split: rows.rows for split, rows in read(published_raw, "matres", ("train", "dev", "test")).items()}
    labels = {split: Counter(one.answers[0] for one in rows) for split, rows in found.items()}
    assert {split: [counts[label] for label in OPTIONS] for split, counts in labels.items()} == {
        "train": [3_229, 2_044, 208, 855],
        "dev": [3_233, 2_263, 232, 676],
        "test": [412, 263, 30, 113],
    }
    assert Counter(one.subset for one in found["dev"]) == {"aligned": 3_233, "conflict": 3_171}
    priors = Counter(prior for one in found["dev"] for prior in one.meta["conflicts_with"])
    assert priors == {"narrative": 3_171, "tense": 1_093, "roberta_erp": 3_862}
    assert Counter(one.subset for one in found["test"]) == {"aligned": 412, "conflict": 406}
    for one in (sample for rows in found.values() for sample in rows):
        assert one.context.index("<e1>") < one.context.index("<e2>")
        assert one.refined_context is not None
        assert one.refined_context.count("<e1>") == one.refined_context.count("<e2>") == 1
