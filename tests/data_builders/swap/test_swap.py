"""Counterfactual swaps: the new answer follows from the text, no trace of the old one is left, nonsense is refused."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from pathlib import Path

import pytest

from d2e_sft.data.conversation import prompt_turns
from d2e_sft.data.sample import EventSample, Subset, read_samples
from d2e_sft.util.errors import UserError
from data_builders.build.options import BuildOptions
from data_builders.build.run import build
from data_builders.swap.candidates import Pool, SwapOptions
from data_builders.swap.revise import Refusal
from data_builders.swap.swap import Swaps, swap_samples, with_twins
from data_builders.text.mentions import exchanged
from tests.data_builders.boxes.simulation import contents_by_text
from tests.data_builders.own_rows import QA, QA_ROWS, write
from tests.data_builders.reading import build_splits

Built = dict[str, list[EventSample]]


def _row(number: int, context: str, question: str, *answers: str, **other: object) -> EventSample:
    fields = {"id": f"hand-{number}", "dataset": "hand", "split": "train", "relation": "causal", "format": "qa"}
    return EventSample.model_validate(
        {**fields, "context": context, "question": question, "answers": answers, **other}
    )


# Two towns, so that each is the other's substitute.
TOWN = _row(0, "Ann moved to Lima in May. Lima is warm.", "Which town did Ann move to?", "Lima")
OTHER = _row(1, "Bob left Oslo for good.", "Which town did Bob leave?", "Oslo")


def _swap(*rows: EventSample, share: float = 1.0, seed: int = 0, **options: object) -> tuple[list[EventSample], Swaps]:
    """Swap in a pool of the other rows, unless the options name others."""
    chosen = SwapOptions.model_validate({"pools": "options,dataset", **options})
    return swap_samples(rows, share, random.Random(seed), chosen)


@pytest.fixture(scope="module")
def habit(tmp_path_factory: pytest.TempPathFactory) -> tuple[Built, Built, Path]:
    """The habit task, its rows with half of the training swapped, and the folder of the latter."""
    settings = ["train_samples=200", "test_samples=20", "strength=0.95"]
    folder = tmp_path_factory.mktemp("habit")
    plain = build_splits(folder / "plain", "habit", *settings)
    return plain, build_splits(folder / "swapped", "habit", *settings, swap=0.5), folder / "swapped"


def test_a_share_of_the_training_rows_is_replaced_and_the_test_is_unchanged(
    habit: tuple[Built, Built, Path],
) -> None:
    plain, swapped, _ = habit
    assert swapped["test"] == plain["test"]
    assert len(swapped["train"]) == len(plain["train"]) == 200
    changed = [(old, new) for old, new in zip(plain["train"], swapped["train"], strict=True) if old != new]
    assert len(changed) == 100
    for old, new in changed:
        assert new.id == f"{old.id}-swapped"
        assert (new.question, new.habit, new.subset) == (old.question, old.habit, "conflict")
        assert new.meta["swapped"] == {"from": old.answers[0], "to": new.answers[0], "pool": "dataset"}
        assert new.answers[0] not in (*old.answers, *old.habit)


def test_the_answer_follows_from_swapped_stories_and_the_original_can_be_restored(
    habit: tuple[Built, Built, Path],
) -> None:
    plain, swapped, _ = habit
    for old, new in zip(plain["train"], swapped["train"], strict=True):
        moves = rf"[Tt]he {new.meta['thing']} (?:is in|to) the (\w+)\."
        for text in (new.context, new.refined_context or ""):
            assert re.findall(moves, text)[-1] == new.answers[0]
        if both := new.meta.get("swapped"):
            back = {both["to"]: both["from"], both["from"]: both["to"]}
            assert exchanged(new.context, back) == old.context
            assert exchanged(new.refined_context or "", back) == old.refined_context


def test_manifest_and_card_count_the_swaps(habit: tuple[Built, Built, Path]) -> None:
    folder = habit[2]
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    entry = {"rows": 200, "wanted": 100, "swapped": 100, "pools": {"dataset": 100}, "refused": {}}
    assert manifest["swap"] == {"share": 0.5, "datasets": {"habit": entry}}
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "| habit | train | 200 | 100 | 100 | 100 dataset |" in card
    assert "--swap 0.5" in card


def test_twins_and_the_pools_of_a_build_are_on_record(tmp_path: Path) -> None:
    settings = ["boxes.train_samples=5", "boxes.test_samples=40", "swap.pools=lists,dataset"]
    result = build(BuildOptions(["boxes"], tmp_path, swap_test=0.25, settings=settings))
    counts = result.manifest["swap-test"]["datasets"]["boxes"]
    assert (counts["rows"], counts["wanted"], counts["pools"]) == (40, 10, {"dataset": 10})
    assert sum(row.subset == "conflict" for row in read_samples(tmp_path / "test.parquet")) == 10
    assert result.manifest["options"]["swap"]["pools"] == "lists,dataset"
    assert result.warnings == [
        "boxes test: never swapped: 'nothing': 0 of 6; a habit of these answers is not measured",
        "boxes test: 10 conflict rows; 20 are needed to compare by subset: more test rows (a larger `test`), or "
        "--swap-test 1",
    ]
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "--swap-test 0.25" in card
    assert "swap.pools=lists,dataset" in card


def _habit_of_one_length(rows: int, usual: str) -> str:
    """Own rows of which the usual answer has as many words as no other: every fourth row is answered otherwise."""
    others = ("the cold store", "the paint room", "the loading dock")
    lines = [
        f"{n} is kept in {place}.,Where is {n}?,{place}"
        for n, place in ((f"crate {100 + n}", usual if n % 4 else others[n // 4 % 3]) for n in range(rows))
    ]
    return "\n".join(["context,question,answer", *lines, ""])


def test_a_habit_of_another_length_than_other_answers_gets_conflict_rows(tmp_path: Path) -> None:
    spec = "train: mine.csv\ntest: test.csv\nformat: qa\nrelation: none\n"
    # In the test rows, nothing but the habit is an answer; the others are those of the training rows.
    test = "context,question,answer\n" + "".join(
        f"Box {n} is kept in the workshop.,Where is box {n}?,the workshop\n" for n in range(25)
    )
    path = write(tmp_path, mine_csv=_habit_of_one_length(40, "the workshop"), test_csv=test, mine_yaml=spec)
    result = build(BuildOptions([str(path)], tmp_path / "out", swap=0.5, swap_test=1))
    assert result.warnings == []
    twins = [row for row in read_samples(tmp_path / "out" / "test.parquet") if row.subset == "conflict"]
    assert len(twins) == 25
    for twin in twins:
        [place] = twin.answers
        assert place in ("the cold store", "the paint room", "the loading dock")
        assert twin.context.endswith(f" is kept in {place}.")


def test_frequent_answers_that_were_never_swapped_are_named(tmp_path: Path) -> None:
    rows = _habit_of_one_length(40, "nothing but a shelf that nobody had seen before")
    path = write(tmp_path, mine_csv=rows, mine_yaml=QA)
    result = build(BuildOptions([str(path)], tmp_path / "out", swap=1))
    assert result.warnings[1:] == [
        "mine train: never swapped: 'nothing but a shelf that nobody had seen before': 0 of 30; a habit of these "
        "answers stays as it is"
    ]


@pytest.mark.parametrize(("more", "warns"), [("", True), (",choices", False)])
def test_a_single_replacement_of_the_usual_answer_is_a_new_habit(tmp_path: Path, more: str, warns: bool) -> None:
    lines = [
        f"Crate {n} is kept in {place}.,Where is crate {n}?,{place}" + (",the attic|the yard|the loft" if more else "")
        for n, place in ((n, "the barn" if n % 8 == 7 else "the shed") for n in range(40))
    ]
    spec = QA + ("columns: {choices: choices}\n" if more else "")
    path = write(tmp_path, mine_csv="\n".join([f"context,question,answer{more}", *lines, ""]), mine_yaml=spec)
    warnings = build(BuildOptions([str(path)], tmp_path / "out", swap=0.5)).warnings
    rows = read_samples(tmp_path / "out" / "train.parquet")
    new = Counter(row.answers[0] for row in rows if row.meta.get("swapped", {}).get("from") == "the shed")
    if not warns:
        assert (max(new.values()) * 2 <= new.total(), warnings) == (True, [])
        return
    assert set(new) == {"the barn"}
    count = f"{new.total()} of {new.total()} swapped rows: a new habit"
    remedy = "list other answers in the column `choices` (docs/how-to/own-data.md)"
    assert warnings == [f"mine train: 'the shed' became 'the barn' in {count}; remedy: {remedy}"]


@pytest.mark.parametrize(("lacking", "warns"), [(1, False), (2, True)])
def test_a_twentieth_of_the_contexts_without_their_answer_is_worth_a_warning(
    tmp_path: Path, lacking: int, warns: bool
) -> None:
    changed = _habit_of_one_length(30, "the shed").replace("kept in the shed", "kept in a hut", lacking)
    path = write(tmp_path, mine_csv=changed, mine_yaml=QA)
    warnings = build(BuildOptions([str(path)], tmp_path / "out")).warnings
    assert [w.partition("(")[0] for w in warnings] == [
        f"mine train: {lacking} of 30 contexts lack their answer "
    ] * warns
    assert all(w.endswith("shorten the answers to words of the context") for w in warnings)


def test_contexts_that_lack_their_answers_are_told_and_cannot_be_swapped(tmp_path: Path) -> None:
    rows = _habit_of_one_length(8, "the shed").replace(",the ", ",in the ")
    path = write(tmp_path, mine_csv=rows.replace(" is kept in", " is kept near"), mine_yaml=QA)
    [warning] = build(BuildOptions([str(path)], tmp_path / "out")).warnings
    assert warning.startswith("mine train: 8 of 8 contexts lack their answer (the first: mine-train-2)")
    with pytest.raises(UserError, match=r"8 the context lacks the answer\)\n  remedy: drop it, check the columns"):
        build(BuildOptions([str(path)], tmp_path / "swapped", swap=0.5))


def test_the_seed_decides_what_is_swapped(tmp_path: Path, habit: tuple[Built, Built, Path]) -> None:
    settings = ["train_samples=200", "test_samples=20", "strength=0.95", "seed=0"]
    assert build_splits(tmp_path / "again", "habit", *settings, swap=0.5) == habit[1]
    assert build_splits(tmp_path / "other", "habit", *settings, seed=1, swap=0.5)["train"] != habit[1]["train"]


def test_answers_of_swapped_boxes_follow_from_the_text(tmp_path: Path) -> None:
    settings = ["train_samples=150", "test_samples=5", "operations=4"]
    swapped = [row for row in build_splits(tmp_path, "boxes", *settings, swap=0.5)["train"] if "swapped" in row.meta]
    assert len(swapped) == 75
    for row in swapped:
        contents = set(re.findall(r"the (\w+)", row.answers[0]))
        assert contents_by_text(row.context, strict=True)[str(row.meta["box"])] == contents


KEY = _row(2, "The key is in the barn.", "Where?", "barn", format="scq", options=["garage", "barn", "Lima"])


@pytest.mark.parametrize(
    ("row", "changed"),
    [
        (
            TOWN.model_copy(update={"refined_context": "Lima is warm."}),
            {"context": "Ann moved to Oslo in May. Oslo is warm.", "refined_context": "Oslo is warm."},
        ),
        (TOWN.model_copy(update={"context": "Ann left Oslo for Lima."}), {"context": "Ann left Lima for Oslo."}),
        (KEY, {"context": "The key is in the garage.", "answers": ["garage"]}),  # another of its options
    ],
)
def test_the_answer_and_the_other_entity_change_places(row: EventSample, changed: dict[str, object]) -> None:
    (new, _), _ = _swap(row, OTHER)
    expected = {"answers": ["Oslo"], "subset": None, "options": row.options, **changed}
    assert {name: getattr(new, name) for name in expected} == expected


def test_a_year_is_swapped_only_for_a_near_one_that_keeps_the_order_of_years() -> None:
    asked = "When was it built?"
    row = _row(2, "Planned for 2019, it opened in 2021.", asked, "2019")
    years = {"2018": True, "2020": True, "2022": False, "1944": False, "2021": False}
    for year, fits in years.items():
        rows, _ = _swap(row, _row(3, f"{year} was it.", asked, year), pools="dataset")
        assert (rows[0].answers == [year]) == fits, year
    for seed in range(20):
        listed, swaps = _swap(row, seed=seed, pools="lists")
        assert int(listed[0].answers[0]) in {*range(2009, 2021)} - {2019}
        assert swaps.pools == {Pool.LISTS: 1}


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (_row(2, "It rained.", "It was wet.", "positive", format="nli"), Refusal.LABEL),
        (_row(2, "A b.", "Which?", "A", "b", format="mcq", options=["A", "b", "c"]), Refusal.SEVERAL),
        (_row(2, "She moved.", "Which town did Ann move to?", "Lima"), Refusal.ABSENT),
        (_row(2, "He fell as it was dark and wet.", "Why?", "it was dark and wet"), Refusal.NO_ENTITY),
        (_row(2, "Box 1 has nothing in it.", "What does Box 1 contain?", "nothing"), Refusal.NO_ENTITY),
        (_row(2, "She likes New Rome and New rome.", "Which town does Ann like?", "new rome"), Refusal.OTHER_CASE),
        (_row(2, "Ann moved to Lima.", "Which town near Lima did Ann like?", "Lima"), Refusal.IN_QUESTION),
        (_row(2, "To Lima, the City of Kings.", "Which town?", "Lima", "City of Kings"), Refusal.OTHER_ANSWER),
        (_row(2, "Ann moved to Lima. Limas are warm.", "Which town did Ann move to?", "Lima"), Refusal.TRACES),
        (_row(2, "The Lima Times came.", "Which town?", "Lima"), Refusal.LONGER_NAME),
        (_row(2, "He bought 12 pens on day 12.", "How many pens?", "12"), Refusal.REPEATED_NUMBER),
        (_row(2, "Ann Lee went.", "Who went?", "Ann Lee"), Refusal.NO_OTHER),
        # Oslo does not fit: it is in the question, leaves a trace, is in a longer name, needs "an", or is the habit.
        (_row(2, "Ann moved to Lima.", "Which town, not Oslo, did Ann move to?", "Lima"), Refusal.NO_OTHER),
        (_row(2, "Ann moved to Lima, not to Oslos.", "Which town did Ann move to?", "Lima"), Refusal.NO_OTHER),
        (_row(2, "Ann moved to Lima by Oslo Fjord.", "Which town did Ann move to?", "Lima"), Refusal.NO_OTHER),
        (_row(2, "Ann saw a Lima.", "Which town did Ann see?", "Lima"), Refusal.NO_OTHER),
        (TOWN.model_copy(update={"habit": ["oslo"], "subset": "conflict"}), Refusal.NO_OTHER),
        (TOWN.model_copy(update={"habit": ["The Oslo."], "subset": "conflict"}), Refusal.NO_OTHER),
    ],
)  # fmt: skip
def test_a_swap_without_sense_is_refused_with_a_reason(row: EventSample, why: Refusal) -> None:
    rows, swaps = _swap(row, TOWN, OTHER)  # the others can be swapped
    assert rows[0] == row
    assert swaps.refused == {why: 1}


def test_missing_swaps_are_counted() -> None:
    nothing = _row(5, "It rained.", "Why?", "clouds")
    rows, swaps = _swap(nothing, TOWN, OTHER, nothing.model_copy(update={"id": "hand-6"}), share=0.75)
    assert (swaps.wanted, swaps.swapped, swaps.refused[Refusal.ABSENT]) == (3, 2, 2)
    assert [row.id for row in rows] == ["hand-5", "hand-0-swapped", "hand-1-swapped", "hand-6"]


def test_a_swap_that_finds_nothing_is_an_error_with_the_reasons(raw: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--swap 1: nothing was swapped in \d+ rows \(\d+ .* label\)"):
        build(BuildOptions(["tracie"], tmp_path / "out", raw, swap=1.0))
    with pytest.raises(UserError, match=r"--swap 0.001: .* 20 rows \(the share is less than one row\)"):
        build_splits(tmp_path / "few", "habit", "train_samples=20", swap=0.001)
    spec = write(tmp_path, mine_csv=QA_ROWS, mine_yaml=QA)
    with pytest.raises(UserError, match=r"--swap-test 0.5: nothing .* \(there are no test rows\)"):
        build(BuildOptions([str(spec)], tmp_path / "own", swap_test=0.5))


def test_the_originals_answer_is_the_habit_of_its_twin() -> None:
    alone = _row(5, "It rained.", "Why?", "clouds")
    dataset = SwapOptions.model_validate({"pools": "dataset"})
    rows, swaps = with_twins([TOWN, alone, OTHER], 1.0, random.Random(0), dataset)
    assert [row.id for row in rows] == ["hand-0", "hand-0-swapped", "hand-5", "hand-1", "hand-1-swapped"]
    assert [row.subset for row in rows] == ["aligned", "conflict", None, "aligned", "conflict"]
    first, twin = rows[:2]
    assert (first.answers, first.habit, twin.habit) == (TOWN.answers, TOWN.answers, TOWN.answers)
    assert (twin.answers, TOWN.answers[0] in twin.context) == (OTHER.answers, False)
    assert (swaps.wanted, swaps.swapped) == (3, 2)
    tagged = TOWN.model_copy(update={"subset": "gold"})
    assert with_twins([tagged, OTHER], 1.0, random.Random(0), dataset)[0][0] == tagged


@pytest.mark.parametrize(
    ("subset", "habit", "of_twin"),
    [("aligned", TOWN.answers, "conflict"), ("conflict", ["Ulm"], "conflict"), ("unknown", [], "unknown")],
)
def test_a_tagged_row_stays_and_its_twin_has_the_models_habit(subset: Subset, habit: list[str], of_twin: str) -> None:
    meta = {**TOWN.meta, "tag": {"model": "m", "probability": 0.9}}
    tagged = TOWN.model_copy(update={"subset": subset, "habit": habit, "meta": meta})
    options = SwapOptions.model_validate({"pools": "dataset"})
    (row, twin, *_), swaps = with_twins([tagged, OTHER], 1.0, random.Random(0), options)
    assert row == tagged
    assert (twin.id, twin.subset, twin.habit, twin.answers) == ("hand-0-swapped", of_twin, habit, OTHER.answers)
    assert twin.meta["tag"] == meta["tag"]
    assert swaps.rows == 2


def test_a_chat_row_is_swapped_unless_another_turn_names_the_answer() -> None:
    asked = "Which town did Ann move to?"
    chat = [
        row.model_copy(update={"format": "chat", "conversation": prompt_turns("{context}\n{question}", said, asked)})
        for row, said in ((TOWN, "Be brief."), (OTHER, f"Say {OTHER.answers[0]}."))
    ]
    rows, swaps = _swap(*chat)
    assert swaps.refused[Refusal.IN_QUESTION] == 1
    assert rows[1] == chat[1]
