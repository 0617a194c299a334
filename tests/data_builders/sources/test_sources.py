"""Small raw files give the rows of samples.yaml, damaged rows the messages of bad_rows.yaml; sources that draw."""

import json
import os
import random
import re
import time
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from d2e_sft.data.sample import EventSample
from d2e_sft.util.errors import UserError
from data_builders.build.options import parse_settings
from data_builders.build.suites import SUITES
from data_builders.dataset import describe_rows
from data_builders.raw.files import locate_files
from data_builders.refine.rules import RefinerOptions, refine_samples
from data_builders.sources import SOURCES
from data_builders.sources.conflict.matres import find_events
from data_builders.sources.conflict.torque import number_repeats
from data_builders.sources.piper.tracie import without_csv_quotes
from data_builders.sources.reading import first_of_each, keep_unseen
from tests.data_builders.reading import read, replace, use_substitutes

CASES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
SEEDS = range(8)


def test_half_of_each_cider_relation_is_false_and_no_annotated_pair(raw: Path) -> None:
    spans = ("lit a candle", "lamp", "thing")
    possible = {
        "Causes": {"'lit a candle' causes 'lamp broke'."},  # the other dialogue has its pair both ways
        "Before": {"'read a book' happens before 'lamp broke'.", "'we talked' happens before 'hungry'."},
        "Simutaneous": {f"'read a book' happens at the same time as '{span}'." for span in spans},
    }
    for seed in SEEDS:
        rows = read(raw, "cider", seed=seed)["test"].rows
        false = [row for row in rows if row.answers == ["negative"]]
        assert len(rows) == 7
        assert Counter(row.meta["cider_relation"] for row in false) == {"Causes": 1, "Before": 1, "Simutaneous": 1}
        assert all(row.question in possible[row.meta["cider_relation"]] for row in false)


def test_tracie_keeps_one_row_of_each_pair_of_events_with_even_labels(raw: Path) -> None:
    path = raw / "tracie/iid/tracie_test.txt"
    lines = path.read_text(encoding="utf-8").splitlines()
    only_positive = [line for line in lines[:8] if line.endswith("positive")]  # of two events
    for content in (lines, only_positive + lines[8:]):
        path.write_text("\n".join(content) + "\n", encoding="utf-8")
        rows = read(raw, "tracie")["test"].rows
        assert len({row.context for row in rows}) == len(rows) == 10
        assert Counter(row.answers[0] for row in rows) == {"positive": 5, "negative": 5}


def test_cosmosqa_draws_wrong_answers_from_other_stories_if_there_are_enough(raw: Path) -> None:
    use_substitutes(raw, "cosmosqa")
    places = set()
    for seed in SEEDS:
        rows = read(raw, "cosmosqa", seed=seed)["train"].rows
        assert len(rows) == 20  # one story is in the test
        for row in rows:
            number = int(row.question.split()[-2])
            assert row.answers == [f"It is {number} ."]
            others = {int(option.split()[-2]) // 2 for option in row.options if option != row.answers[0]}
            assert number // 2 not in others
            places.add(row.options.index(row.answers[0]))
    assert places == {0, 1, 2, 3}
    few = {"Instances": [{"input": "Context: A . \nQuestion: B ?", "output": ["C ."]}]}
    (raw / "cosmosqa/subtask024_cosmosqa_answer_generation.json").write_text(json.dumps(few))
    with pytest.raises(UserError, match="its 1 questions have too few answers to draw wrong ones from"):
        read(raw, "cosmosqa")


@pytest.mark.parametrize("name", ["tracie", "cosmosqa"])
def test_a_draw_depends_on_the_seed_only(raw: Path, name: str) -> None:
    use_substitutes(raw, "cosmosqa")
    drawn = [read(raw, name, seed=seed)["train"].rows for seed in (0, 0, 2)]
    assert drawn[0] == drawn[1] == read(raw, name, ("train",))["train"].rows != drawn[2]


def test_exchanged_matres_pairs_are_drawn_in_training_only(raw: Path) -> None:
    half = read(raw, "matres", ("train", "test"), "exchanged_share=0.5")
    assert {bool(row.meta.get("exchanged")) for row in half["train"].rows} == {True, False}
    assert half["test"].rows == read(raw, "matres")["test"].rows


def test_a_subset_file_that_does_not_fit_the_rows_of_matres_is_an_error(raw: Path) -> None:
    path = raw / "conflict/event-temporal/matres/valid_text_features_matres_roberta_erp_bias.json"
    path.write_text(json.dumps(json.loads(path.read_text())[::-1]))
    with pytest.raises(UserError, match=r"roberta_erp_bias\.json, item 2: equals none of the following rows of"):
        read(raw, "matres", ("dev",))


@pytest.mark.parametrize("name", ["kre_squad", "nq_swap"])
def test_drawn_training_rows_are_aligned_and_share_no_passage_with_the_test(raw: Path, name: str) -> None:
    assert set(read(raw, name)) == {"test"}, "no share, no training rows"
    sizes = set()
    for seed in SEEDS:
        found = read(raw, name, ("train", "test"), "train_share=0.4", seed=seed)
        train, test = found["train"].rows, found["test"].rows
        assert {row.subset for row in train} <= {"aligned"}
        assert not {row.context for row in train} & {row.context for row in test}
        assert not {row.question for row in train} & {row.question for row in test}
        sizes.add(len(train))
        assert read(raw, name, ("test",), "train_share=0.4", seed=seed)["test"].rows == test
    assert max(sizes) > 0


def test_the_first_row_of_each_key_stays_and_a_key_of_the_test_goes() -> None:
    assert first_of_each(["b1", "a1", "b2", "a2"], lambda row: row[0]) == ["b1", "a1"]
    rows, test = [("a", ""), ("b", "x"), ("c", "y")], [("a", ""), ("z", "y")]
    unseen = keep_unseen("unseen", "in the test", lambda row: row[0], lambda row: row[1])
    assert unseen.keep(rows, test) == [("b", "x")]  # an empty key is never shared


# Revised documents


def golden(number: int, passage: str, answer: str, *others: str, question: str = "") -> dict[str, object]:
    """A row of KRE-SQuAD's golden file."""
    choices, asked = [f" {other} " for other in others] + [answer], question or f"What is thing {number}?"
    return {"question": asked, "choices": choices, "id": f"squad_{number}", "answer": answer, "context": passage}


def number_of(row: EventSample) -> int:
    return int(row.meta["squad_id"].removeprefix("squad_"))


def test_a_revised_passage_states_another_option_wherever_the_answer_stood(raw: Path) -> None:
    passages = [f"Place {n} has a lake. In it the harbour {n} is amber. Amber was chosen by all." for n in range(12)]
    rows = [golden(n, text, "amber", "Blue", "White", "Grey") for n, text in enumerate(passages)]
    clause = "less willing to travel or to move"
    # None of these can be revised: the question names the answer, a part of a name, a clause, another article.
    rows += [
        golden(20, "The amber gate is old.", "amber", "blue", "white", "grey", question="Is it amber or not?"),
        golden(21, "Ann Dow left. Dow came back.", "Ann Dow", "Bo Ray", "Cy Fay", "Di Ash"),
        golden(22, f"They may be {clause}.", clause, "x", "y", "z"),
        golden(23, "It was an owl.", "owl", "bear", "cat", "dog"),
        golden(24, "It was built in 1902.", "1902", "old", "new", "red"),
    ]
    (raw / "conflict/kre-squad/squad_golden.json").write_text(json.dumps(rows))
    found = read(raw, "revised", ("train", "test"), "train_samples=6", "test_samples=4", "max_words=20")
    train, test = found["train"].rows, found["test"].rows
    assert [row.subset for row in train] == [None] * 6
    by_number = {number_of(row): row for row in train}
    for aligned, conflict in zip(test[::2], test[1::2], strict=True):
        number, new = number_of(aligned), conflict.answers[0]
        assert (aligned.subset, conflict.subset, aligned.answers) == ("aligned", "conflict", ["amber"])
        assert new in ("blue", "white", "grey")
        assert aligned.habit == conflict.habit == ["amber"]
        assert aligned.context == passages[number]
        assert conflict.context == passages[number].replace("amber", new).replace("Amber", new.capitalize())
        trained = aligned.dataset == "revised"
        assert (number in by_number) == trained == aligned.meta["trained"]
        if trained:  # `--swap` in training must not state the test's answer
            assert {*by_number[number].meta["choices"], new} == {"blue", "white", "grey"}
    # The probe's first dataset is that of training.
    assert [row.dataset for row in test] == ["revised"] * 8 + ["revised_untrained"] * 8


def test_the_passages_of_untrained_questions_are_not_trained(raw: Path) -> None:
    rows = [golden(n, f"In place {n // 3} the wall is amber.", "amber", "blue", "white", "grey") for n in range(30)]
    (raw / "conflict/kre-squad/squad_golden.json").write_text(json.dumps(rows))
    for seed in SEEDS:
        found = read(raw, "revised", ("train", "test"), "train_samples=10", "test_samples=30", seed=seed)
        trained = {number_of(row) // 3 for row in found["train"].rows}
        untrained = {number_of(row) // 3 for row in found["test"].rows if row.dataset == "revised_untrained"}
        assert untrained
        assert not trained & untrained
    for name in ("train_samples", "test_samples"):
        with pytest.raises(UserError, match=f"{name}: got '?0"):
            read(raw, "revised", ("train", "test"), f"{name}=0")


# Texts of single sources


def test_words_that_are_not_events_have_no_number() -> None:
    assert number_repeats(["had", "said", "had", "said"], [0, 1, 1, 1]) == ["had", "said (1)", "had", "said (2)"]


def test_stories_lose_the_quotes_of_csv_and_keep_their_own(raw: Path) -> None:
    story = 'It rained. "So, Ann left." "He heard a ""meow""." She ate her "greens" then!'
    assert without_csv_quotes(story) == 'It rained. So, Ann left. He heard a "meow". She ate her "greens" then!'
    path = raw / "tracie/iid/tracie_test.txt"
    plain, quoted = "early. The rain comes down.", 'early. "The rain, it comes down."'
    path.write_text(path.read_text(encoding="utf-8").replace(plain, quoted), encoding="utf-8")
    rows = read(raw, "tracie")["test"].rows
    assert all("early. The rain, it comes down. Everyone" in sample.context for sample in rows)
    assert describe_rows(rows)["rows_decoded"] == {"CSV quotes": 10}


def test_questions_of_cqa_are_published_or_derived(raw: Path) -> None:
    published = (raw / "cqa/qa_dataset_test.json").read_text()
    use_substitutes(raw, "cqa")
    with pytest.raises(UserError, match=r"cqa\.rule=word: only for published questions; raw/event_dataset_test\.json"):
        read(raw, "cqa", ("test",), "rule=word")
    # Spans are found in decoded passages.
    replace(raw / "cqa/reconstruct_rl/train.json", "Firms say a strike", "A&amp;B say a strike")
    first = read(raw, "cqa")["train"].rows[0]
    assert (first.context, first.meta["decoded"]) == ("A&B say a strike could halt work.", ["HTML entities"])
    # Published questions are preferred.
    (raw / "cqa/qa_dataset_test.json").write_text(published)
    assert {row.meta["source"] for row in read(raw, "cqa")["test"].rows} == {"qa_dataset_test.json"}
    chosen = parse_settings(["cqa.test_file=raw/event_dataset_test.json"], [SOURCES["cqa"]])
    located = locate_files(SOURCES["cqa"], ["test"], raw, chosen.files["cqa"])
    assert located.of(["test"])["test"].file.substitute


LEADERS = [f"In 19{number} the old town of X chose Leader{number} ." for number in range(10, 90)]
LIST = [f"- Leader{number}" for number in range(10, 90)]


@pytest.mark.parametrize(
    ("sentences", "answer", "most", "excerpt"),
    [
        (LEADERS, "Leader50", 47, " ".join(LEADERS[39:43])),  # four sentences of ten words, the next one first
        (LIST, "Leader50", 20, " ".join(" ".join(LIST).split()[81:99])),  # a list: two chunks of nine words
        (["X chose \ufeffLeader1 .", "He left ."], "\ufeffLeader1", 600, "Title X chose Leader1 . He left ."),
    ],
)
def test_excerpts_of_a_page(raw: Path, sentences: list[str], answer: str, most: int, excerpt: str) -> None:
    """Whole sentences around the answer, else the published paragraphs, which are chunks of nine words here."""
    words = " ".join(sentences).split()
    chunks = [" ".join(words[at : at + 9]) for at in range(0, len(words), 9)]
    page = " ".join(["Title", *chunks])
    place = page.index(answer)
    row = {"idx": "/wiki/X#P1#0", "question": "Who led X?", "context": page, "targets": [answer], "from": [place]}
    row |= {"end": [place + len(answer)], "paragraphs": [{"text": chunk} for chunk in chunks]}
    (raw / "timeqa/train.hard.json.gzip").write_text(json.dumps(row) + "\n")
    (sample,) = read(raw, "timeqa", ("train", "test"), f"max_words={most}")["train"].rows
    assert (sample.context, sample.answers) == (excerpt, [answer.strip("\ufeff")])


# The events of MATRES

TEXT = "It rained, stopped and rained."


@pytest.mark.parametrize(("events", "near", "found"), CASES["events of MATRES"])
def test_two_events_are_found(events: list[str], near: list[float], found: list[str] | None) -> None:
    spans = find_events(TEXT, (events[0], events[1]), (near[0], near[1]))
    assert (spans and [TEXT[start:end] for start, end in spans]) == found


def test_the_pair_is_the_nearest_of_all_pairs_and_found_quickly() -> None:
    draw = random.Random(0)
    for _ in range(300):
        text = "".join(draw.choice("ab c_²") for _ in range(draw.randrange(1, 25)))
        near = (draw.uniform(-3, 25), draw.uniform(-3, 25))
        first, second = (
            [found.start() for found in re.finditer(rf"(?<![^\W\d_]){event}", text)]
            or [found.start() for found in re.finditer(event, text)]
            for event in "ab"
        )
        every = [pair for pair in product(first, second) if pair[0] < pair[1]]
        best = min(every, key=lambda pair: abs(pair[0] - near[0]) + abs(pair[1] - near[1]), default=None)
        spans = find_events(text, ("a", "b"), near)
        assert (spans and (spans[0][0], spans[1][0])) == best
    started = time.process_time()
    assert find_events("a " * 100_000, ("a", "a"), (1e4, 2e4)) == ((10_000, 10_001), (20_000, 20_001))
    assert time.process_time() - started < 2


SNAPSHOT = Path(__file__).with_name("samples.yaml")
SAMPLES = yaml.safe_load(SNAPSHOT.read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", SAMPLES, ids=lambda case: f"{case['dataset']}: {case['what']}")
def test_raw_rows_become_these_samples(raw: Path, case: dict[str, Any]) -> None:
    """Whole rows with their refined contexts, and the rows after each filter; D2E_UPDATE=1 writes the snapshot."""
    name, split = case["dataset"], case["split"]
    if case.get("substitutes"):
        use_substitutes(raw, name)
    found = read(raw, name, (split,), *case.get("settings", ()))[split]
    rows = refine_samples(list(found.rows), RefinerOptions())
    found = {
        "filters": {step.name: f"{step.rows_in} → {step.rows_out} {step.unit}" for step in found.filters},
        "samples": [row.model_dump(mode="json", exclude_defaults=True, exclude={"dataset", "split"}) for row in rows],
    }
    if os.environ.get("D2E_UPDATE"):
        case |= found
        SNAPSHOT.write_text("\n".join(map(_written, SAMPLES)), encoding="utf-8")
    assert found == {key: case[key] for key in found}


def _written(case: dict[str, Any]) -> str:
    """A case with a line for each row."""
    head = yaml.safe_dump([{**case, "samples": []}], allow_unicode=True, sort_keys=False, width=115)
    rows = "".join(f"\n  - {json.dumps(row, ensure_ascii=False)}" for row in case["samples"])
    return head.replace("  samples: []\n", f"  samples:{rows or ' []'}\n")


BAD_ROWS = yaml.safe_load(Path(__file__).with_name("bad_rows.yaml").read_text(encoding="utf-8"))
_DAMAGES = [(table, *row) for table in BAD_ROWS for row in table["rows"]]


@pytest.mark.parametrize(
    ("table", "old", "new", "message"), _DAMAGES, ids=[f"{table['dataset']}: {text}" for table, *_, text in _DAMAGES]
)
def test_a_bad_row_is_named_by_its_place(raw: Path, table: dict[str, Any], old: str, new: str, message: str) -> None:
    if table.get("substitutes"):
        use_substitutes(raw, table["dataset"])
    replace(raw / table["file"], old, new)
    blamed = re.escape(table.get("blamed", Path(table["file"]).name))
    with pytest.raises(UserError, match=rf"{blamed}(, )?{message}"):
        read(raw, table["dataset"], (table.get("split", "test"),))


def test_a_missing_file_that_cannot_be_downloaded_comes_with_the_way_to_get_it(raw: Path) -> None:
    (raw / "ood/storycloze/cloze_test_val__spring2016.csv").unlink()
    with pytest.raises(UserError) as error:
        read(raw, "storycloze")
    assert "cs.rochester.edu/nlp/rocstories" in str(error.value.remedy)


def test_the_explanation_of_ecare_is_never_shown(raw: Path) -> None:
    assert "Never to be seen" in (raw / "ecare/dev_full.jsonl").read_text(encoding="utf-8")
    rows = [row for split in read(raw, "ecare").values() for row in split.rows]
    assert not any("Never to be seen" in row.model_dump_json() for row in rows)


def test_no_suite_has_the_systems_benchmarks() -> None:
    benchmarks = {"crepe", "openpi2"}
    assert benchmarks <= set(SOURCES)
    assert all(benchmarks.isdisjoint(suite.datasets) for suite in SUITES.values())


def test_facts_have_an_address_at_a_fixed_commit_and_a_way_to_get_each_file() -> None:
    ecare, timeqa = SOURCES["ecare"].official[0], SOURCES["timeqa"].inputs[1].candidates[1]
    commit = "c3b52648adcc919303a297a377811e24d703e197"
    assert ecare.url == (
        f"https://raw.githubusercontent.com/Waste-Wood/e-CARE/{commit}/dataset/Causal_Reasoning/train.jsonl"
    )
    assert (ecare.name, ecare.commit, ecare.bytes) == ("train.jsonl", commit, 3_495_616)
    assert timeqa.url.endswith("/TimeBench-full-19000.zip")
    assert timeqa.member.endswith("/timeqa_hard_500.jsonl")
    files = [file for source in SOURCES.values() for item in source.inputs for file in item.candidates]
    assert all(file.url.startswith("https://") or file.by_hand for file in files)
