"""The skeleton of benchmarks with a scorer, and rows that are scored by it."""

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import Field

from d2e_sft.util.errors import UserError
from eval.run.options import EvalOptions
from eval.run.task import TaskItem
from eval.score.measures import read_measures
from eval.systems.asking import ask_by_turns, assistant, exchanges, user
from eval.systems.benchmark import BenchmarkCall, BenchmarkOptions
from eval.systems.labels import LabelScoreOptions
from eval.systems.reading import file_in, read_lines
from eval.systems.rows import ROWS_BENCHMARK, RowsOptions
from eval.systems.run import evaluate_system, score_files, write_template
from tests.command import output_of, refusal_of
from tests.eval.systems.cases import CASES, save_answers, save_gold
from tests.eval.systems.files import read_rows, save
from tests.eval.systems.riddles import GOLD, RIDDLES
from tests.factories import ScriptedAsker, predictions, save_bench, scores_of
from tests.tiny import make_sample


class Options(BenchmarkOptions):
    shots: int = Field(3, ge=0, description="solved examples")
    file: Path | None = None
    password: str = Field("secret", exclude=True)
    draws: int = 5
    scoring: ClassVar[frozenset[str]] = frozenset(("draws",))


def test_the_variant_names_what_changes_the_answers() -> None:
    assert Options().variant == ""
    assert Options(draws=9, password="other").variant == ""
    assert Options(shots=0, file=Path("data/my states.json")).variant == "shots=0-file=my_states"


def test_samples_are_drawn_with_the_seed_and_keep_their_order() -> None:
    def drawn(most: int | None, seed: int = 0) -> list[int]:
        return BenchmarkCall(Path(), Options(), most, seed).drawn(range(100))

    assert drawn(None) == drawn(100) == drawn(200) == list(range(100))
    some = drawn(10)
    assert len(set(some)) == 10
    assert some == sorted(some) == drawn(10)
    assert some != drawn(10, seed=1)


def test_answers_are_read_counted_and_kept(tmp_path: Path) -> None:
    save(tmp_path / "test.jsonl", GOLD)
    asker: Any = ScriptedAsker(lambda name, chat: {"1": "An egg.", "2": "egg", "3": "?"}[chat.id])
    result = RIDDLES.run(BenchmarkCall(tmp_path, RIDDLES.options(), None, 0), asker)
    assert (result.scores["accuracy"], result.scores["unparsed"]) == (1 / 3, {"share": 1 / 3, "questions": 1})
    counts = {"questions": 3, "gold": {"egg": 2, "fire": 1}, "predicted": {"egg": 2, "fire": 0}}
    assert result.scores["counts"] == counts
    assert [table.caption for table in result.tables] == ["Riddles, test.jsonl", "By label"]
    kept = save(tmp_path / "p.jsonl", result.files["riddles_predictions.jsonl"])
    again = RIDDLES.score(kept, tmp_path, LabelScoreOptions())
    assert again.scores == {**result.scores, "missing": 0}
    assert again.measures == result.measures


def test_gold_and_predictions_may_be_csv_and_partial(tmp_path: Path) -> None:
    gold, some = save(tmp_path / "gold.csv", GOLD), save(tmp_path / "p.csv", "id,answer\n2,fire\n3,null\n")
    result = RIDDLES.score(some, gold, LabelScoreOptions(missing="leave_out"))
    assert (result.scores["accuracy"], result.scores["missing"]) == (0.5, 1)
    assert "1 questions have no answer and are left out" in result.tables[0].markdown()


def test_a_file_is_itself_and_a_folder_the_best_name_in_it_or_below(tmp_path: Path) -> None:
    def find(path: Path) -> Path:
        return file_in(path, ("best.json", "good.json"), "--gold", "gold")

    other = save(tmp_path / "other.json", "")
    assert find(other) == other
    deep = save(tmp_path / "v2.0" / "mini" / "good.json", "")
    assert find(tmp_path) == deep
    shallow = save(tmp_path / "v2.0" / "good.json", "")
    assert find(tmp_path) == shallow, "what lies less deep"
    best = save(tmp_path / "a" / "b" / "c" / "best.json", "")
    assert find(tmp_path) == best, "a better name before a nearer place"


def test_csv_has_quotes_line_ends_and_null(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes('\ufeffid, output\r\n\r\n1,"the cup, ""red""\nand blue"\r\n2,null\r\n3,\r\n'.encode())
    rows = [row for _, row in read_lines(file)]
    assert rows == [
        {"id": "1", "output": 'the cup, "red"\nand blue'},
        {"id": "2", "output": None},
        {"id": "3", "output": ""},
    ]


def test_a_pass_asks_all_dialogues_that_go_on_with_their_replies_so_far() -> None:
    asker: Any = ScriptedAsker(lambda name, chat: f" {name} {chat.id} ")
    replies = ask_by_turns(
        asker,
        "turn-{:02}",
        {"long": 2, "short": 1, "none": 0},
        lambda key, said: TaskItem("d", key, [user("go"), *map(assistant, said)], []),
        seed=3,
    )
    assert replies == {"long": ["turn-01 long", "turn-02 long"], "short": ["turn-01 short"], "none": []}
    asked = {name: [chat.messages for chat in chats] for name, chats in asker.asked.items()}
    assert asked == {"turn-01": [[user("go")], [user("go")]], "turn-02": [exchanges([("go", "turn-01 long")])]}
    assert asker.sampling == {"turn-01": (0.0, 3), "turn-02": (0.0, 3)}


def evaluate(model: Path, run: Path, data: Path | None, *given: str, **options: Any) -> tuple[dict[str, Any], Path]:
    chosen = EvalOptions(**{"max_new_tokens": 2, **options})
    scores, _, folder = evaluate_system(str(model), RIDDLES, run=run, data=data, settings=given, options=chosen)
    return scores, folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return save(tmp_path / "test.jsonl", GOLD)


def test_results_are_kept_with_what_they_came_from(model: Path, tmp_path: Path, data: Path) -> None:
    scores, folder = evaluate(model, tmp_path / "run", data, "level=2", max_samples=2, seed=4)
    assert folder == tmp_path / "run" / "eval" / "riddles-level=2"
    assert scores_of(tmp_path / "run", folder.name) == scores
    assert (scores["system"], scores["counts"]["questions"], scores["max_samples"]) == ("riddles", 2, 2)
    assert (scores["options"], scores["without_context"], scores["seed"]) == (
        {"file": "test.jsonl", "level": 2},
        False,
        4,
    )
    assert scores["passes"]["answers"]["engine"] == "transformers"
    assert (folder / "tables.md").read_text().startswith("Riddles, test.jsonl\n\n| questions |")
    for name in ("answers.jsonl", "riddles_predictions.jsonl"):
        assert len((folder / name).read_text().splitlines()) == 2


def test_results_without_measures_get_them_from_the_kept_answers(
    model: Path, tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, folder = evaluate(model, tmp_path / "run", data)
    [measure] = read_measures(folder)
    assert (measure.name, len(measure.counts)) == ("accuracy", 3)
    (folder / "measures.json").unlink()
    evaluate(model, tmp_path / "run", data)
    assert read_measures(folder) == [measure]
    assert "decoded before, and only scored again" in capsys.readouterr().err


@pytest.mark.parametrize("ending", [".csv", ".jsonl"])
@pytest.mark.parametrize("case", CASES)
def test_gold_answers_in_a_template_are_perfect(tmp_path: Path, case: str, ending: str) -> None:
    system, *given = case.split()
    gold, file = save_gold(tmp_path, case), tmp_path / f"empty{ending}"
    write_template(system, gold, given, file)
    with pytest.raises(UserError, match=r"filled in|got ''"):
        score_files(system, [file], gold, given)
    [scored] = score_files(system, [save_answers(tmp_path / f"p{ending}", case, gold)], gold, given)
    means = [one.interval.mean for one in scored.result.measures]
    assert means
    assert not CASES[case].perfect or means == pytest.approx([1] * len(means))
    if case == "crepe":
        assert {name: scored.result.scores[name] for name in ("strangers", "missing", "other_gold")} == {
            "strangers": 0, "missing": 0, "other_gold": 0
        }  # fmt: skip


def test_a_template_of_rows(tmp_path: Path) -> None:
    bench = save_bench(tmp_path / "bench", [make_sample(n, split="test") for n in range(3)])
    assert write_template("rows", bench, [], tmp_path / "p.jsonl") == "3 lines, to fill in: output"
    rows = read_rows(tmp_path / "p.jsonl")
    assert [set(row) for row in rows] == [{"id", "dataset", "output"}] * 3
    with pytest.raises(UserError, match="no output is filled in"):
        score_files("rows", [tmp_path / "p.jsonl"], bench, [])


SAID = ["The answer is: the garage", "the kitchen", "The answer is: the attic", ""]


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    """An aligned row, two conflict rows and one without a tag."""
    tags: list[dict[str, Any]] = [
        {"subset": "aligned", "habit": ["garage"]},
        {"subset": "conflict", "habit": ["kitchen"]},
        {"subset": "conflict", "habit": ["kitchen"]},
        {},
    ]
    rows = [make_sample(n, dataset="keys", split="test", answers=["garage"], **tag) for n, tag in enumerate(tags)]
    return save_bench(tmp_path / "bench", rows)


def save_outputs(path: Path, texts: list[str], **fields: Any) -> Path:
    return save(path, [{"id": f"s{n}", "output": text, **fields} for n, text in enumerate(texts)])


def test_outputs_are_extracted_and_scored_by_subset(bench: Path, tmp_path: Path) -> None:
    scored = ROWS_BENCHMARK.score(save_outputs(tmp_path / "theirs.jsonl", SAID, model="theirs"), bench, RowsOptions())
    assert [p.answer for p in scored.predictions] == [["the garage"], ["the kitchen"], ["the attic"], []]
    (own,) = scored.run.subsets
    assert {name: one.accuracy.mean for name, one in own.subsets.items()} == {"aligned": 1.0, "conflict": 0.0}
    assert own.subsets["conflict"].habit_rate.mean == 0.5


def test_the_results_are_a_run_that_can_be_compared(bench: Path, tmp_path: Path) -> None:
    def score(outputs: Path, *more: str | Path) -> str:
        return output_of("score", "rows", "--predictions", outputs, "--gold", bench, *more)

    for name, texts in (("theirs", SAID), ("perfect", ["garage"] * 4)):
        printed = score(save_outputs(tmp_path / f"{name}.jsonl", texts), "--out", tmp_path / name)
        assert "By subset" in printed
        assert f"scores and predictions: {tmp_path / name / 'eval' / 'bench'}" in printed
    compared = output_of("compare", tmp_path / "theirs", tmp_path / "perfect")
    assert "keys, conflict, 2 rows, right: theirs 0, perfect 2" in compared
    found = json.loads(score(tmp_path / "perfect", "--json", "-"))  # a run's folder will do
    assert found["overall"]["exact_match"]["mean"] == 1
    score(tmp_path / "theirs" / "eval" / "bench" / "predictions.jsonl", "--out", tmp_path / "again")
    assert predictions(tmp_path / "again") == predictions(tmp_path / "theirs")
    assert scores_of(tmp_path / "again")["subsets"] == scores_of(tmp_path / "theirs")["subsets"]
    asked = output_of(
        "score", "rows", tmp_path / "theirs", "--gold", bench, "--set", "form=one_turn", "--out", tmp_path
    )
    assert str(tmp_path / "eval" / "bench-one_turn") in asked, "as d2e eval names them"


def test_decoded_answers_are_not_overwritten_by_scored_files(bench: Path, tmp_path: Path) -> None:
    outputs, folder = save_outputs(tmp_path / "theirs.jsonl", SAID), tmp_path / "run" / "eval" / "bench"
    save(folder / "predictions.decoding.json", "{}")
    kept = save_outputs(folder / "predictions.jsonl", ["garage"] * 4).read_text()
    call = ("score", "rows", outputs, "--gold", bench, "--out", tmp_path / "run")
    assert "holds answers of a model, decoded by d2e eval" in refusal_of(*call)
    assert (folder / "predictions.jsonl").read_text() == kept


def test_rows_without_an_output_are_refused_or_left_out_and_counted(bench: Path, tmp_path: Path) -> None:
    outputs = save_outputs(tmp_path / "theirs.jsonl", SAID[:3])
    arguments = ("--predictions", outputs, "--gold", bench, "--set", "missing=leave_out")
    assert "rows without an output, left out: 1" in output_of("score", "rows", *arguments)


def test_an_id_of_two_datasets_needs_the_dataset(tmp_path: Path) -> None:
    rows = [make_sample(0, dataset=name, split="test", answers=["garage"]) for name in ("keys", "locks")]
    bench = save_bench(tmp_path / "bench", rows)
    named = save(tmp_path / "named.jsonl", [{"id": "s0", "dataset": d, "output": d} for d in ("locks", "keys")])
    assert [p.output for p in ROWS_BENCHMARK.score(named, bench, RowsOptions()).predictions] == ["keys", "locks"]
