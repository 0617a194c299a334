"""Statistics of rows and of systems' raw files, against independent counts; what the question tells."""

import importlib.util
import json
import random
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import EventSample, read_samples, write_samples
from d2e_sft.data.views import ViewEncoder
from d2e_sft.util.encrypted_zip import write_encrypted
from data_builders.dataset import SampleSet, read_set
from data_builders.quality.context_free import hypothesis_alone
from data_builders.quality.stats import compute_stats
from tests.command import output_of
from tests.data_builders.own_rows import nli
from tests.data_builders.reading import published_rows
from tests.tiny import tiny_tokenizer


def test_the_command_prints_and_writes_the_counts_of_the_rows(built: Path, tmp_path: Path) -> None:
    printed = output_of("data", "stats", built, "--tokenizer", "words", "--json", tmp_path / "a/stats.json")
    lines = [line.split() for line in printed.splitlines()]
    samples = [sample for split in ("train", "test") for sample in read_samples(built / f"{split}.parquet")]
    for kind, rows in Counter((row.dataset, row.split, row.relation, row.format) for row in samples).items():
        assert [*kind, str(rows)] in lines
    assert ["all", str(len(samples))] in lines
    written = json.loads((tmp_path / "a/stats.json").read_text("utf-8"))
    assert written == compute_stats([read_set(built)], tokenizer="words")


@pytest.mark.parametrize("unit", ["words", "tokens"])
def test_lengths_are_those_of_the_messages_or_of_what_training_gets(built: Path, tmp_path: Path, unit: str) -> None:
    prompts, tokenizer = load_prompt_set("default"), tiny_tokenizer()
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text('{"model_type": "llama"}')
    encoder = ViewEncoder(tokenizer, prompts, ["original", "imagined", "refined"])
    stats = compute_stats([read_set(built)], tokenizer=str(tmp_path / "model") if unit == "tokens" else "words")
    assert stats["unit"] == unit
    for group in stats["groups"]:
        rows = [s for s in read_samples(built / f"{group['split']}.parquet") if s.dataset == group["dataset"]]
        for view, lengths in group["prompt_lengths"].items():
            if unit == "tokens":
                sizes = [len(encoder.encode(row).prompts[view]) for row in rows]
            else:
                sizes = [len(" ".join(m["content"] for m in prompts.messages(row, view)).split()) for row in rows]
            found = (lengths["n"], lengths["median"], lengths["longest"])
            assert found == (len(rows), median(sizes), max(sizes))


def _group(rows: list[EventSample]) -> dict[str, Any]:
    (group,) = compute_stats([SampleSet("own", rows)], tokenizer="words")["groups"]
    return dict(group)


def test_the_refined_view_counts_only_rows_that_have_one() -> None:
    rows = [nli(n, "It rained. A cat slept.", "It was wet.", "positive") for n in range(4)]
    rows[0] = rows[0].model_copy(update={"refined_context": "It rained."})
    group = _group(rows)
    assert {view: one["n"] for view, one in group["prompt_lengths"].items()} == {
        "original": 4,
        "imagined": 4,
        "refined": 1,
    }
    assert (group["refined_share_of_words"], group["rows_refined_unchanged"]) == (0.4, 0)  # two of five words
    none = _group(rows[1:])
    assert "refined" not in none["prompt_lengths"]
    assert (none["refined_share_of_words"], none["rows_refined_unchanged"]) == (None, None)
    rows[1] = rows[1].model_copy(update={"refined_context": rows[1].context})
    both = _group(rows)
    assert (both["refined_share_of_words"], both["rows_refined_unchanged"]) == (0.7, 1)


def test_what_the_hypotheses_of_the_published_files_tell(published_raw: Path) -> None:
    """CIDER's negatives cannot be told without the dialogue; TRACIE's hypotheses give some of its labels away."""
    cider, tracie = (hypothesis_alone(published_rows(published_raw, name, "test")) for name in ("cider", "tracie"))
    assert 0.46 < cider.accuracy < 0.56
    assert 0.58 < tracie.accuracy < 0.68


def _hypotheses(tell: str, seed: int = 1) -> list[EventSample]:
    """200 rows on 50 premises; `tell` says what gives the label away: the hypothesis, the premise or nothing."""
    random_ = random.Random(seed)
    rows = []
    for number in range(200):
        label = random_.choice(("positive", "negative"))
        premise = number // 4
        if tell == "premise":
            label = ("positive", "negative")[premise % 2]
        word = {"hypothesis": {"positive": "surely", "negative": "never"}[label], "premise": f"word{premise}"}
        rows.append(nli(number, f"Story {premise}.", f"She {word.get(tell, 'then')} came home {number}.", label))
    return rows


def test_a_give_away_word_is_found_chance_is_chance_and_premises_are_new() -> None:
    leaking, clean, premise = (hypothesis_alone(_hypotheses(tell)) for tell in ("hypothesis", "nothing", "premise"))
    assert leaking.accuracy > 0.99
    # Each premise has a word of its own that tells its label: it helps only where the premise was trained on.
    assert (premise.contexts, premise.accuracy < 0.7) == (50, True)
    assert abs(clean.accuracy - 0.5) < 4 * clean.standard_error
    assert clean.standard_error == pytest.approx((clean.accuracy * (1 - clean.accuracy) / 200) ** 0.5, abs=1e-4)


def test_the_baseline_is_the_same_every_time_and_the_seed_matters() -> None:
    rows = _hypotheses("nothing")[:120]
    assert hypothesis_alone(rows) == hypothesis_alone(rows)
    assert len({hypothesis_alone(rows, seed).accuracy for seed in range(3)}) > 1


def test_too_few_rows_give_no_accuracy() -> None:
    rows = _hypotheses("hypothesis")
    few = hypothesis_alone(rows[:20])
    assert (few.n, few.contexts, few.accuracy) == (20, 5, None)
    positive = [row for row in rows if row.answers == ["positive"]]
    one_label = hypothesis_alone(positive)
    assert (one_label.majority_share, one_label.accuracy) == (1.0, None)
    assert hypothesis_alone(rows).majority_share == round(max(len(positive), 200 - len(positive)) / 200, 4)


def test_without_scikit_learn_classifiers_are_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = _hypotheses("nothing")
    write_samples(rows, tmp_path / "rows.jsonl")
    whole = compute_stats([SampleSet("data", rows)], tokenizer="words")
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "sklearn" else find_spec(name))
    found = compute_stats([SampleSet("data", rows)], tokenizer="words")
    assert "pip install 'd2e-sft[stats]'" in found.pop("left_out")
    [group], [expected] = found["groups"], whole["groups"]
    assert expected["hypothesis_alone"]["accuracy"] is not None
    expected["hypothesis_alone"] |= {"accuracy": None, "standard_error": None}
    assert group == expected
    printed = output_of("data", "stats", tmp_path / "rows.jsonl", "--tokenizer", "words")
    assert "majority label" in printed
    assert "pip install 'd2e-sft[stats]'" in printed
    assert "not measured" in printed


def counted(raw: Path, system: str) -> dict[str, list[str]]:
    """Row → cells of all parts of the printed table; the parts of a wide one are joined."""
    rows: dict[str, list[str]] = {}
    printed = output_of("data", "stats", system, "--raw", raw)
    for line in filter(str.strip, printed.splitlines()):
        name, *cells = (part.strip() for part in line.split("  ") if part.strip())
        rows.setdefault(name, []).extend(cells)
    return rows


def test_crepe_counts_blocks_after_the_start(tmp_path: Path) -> None:
    step = {"type": "step", "step": "Boil two eggs"}
    event = {"type": "event", "event": "The pot is hot", "change": "more likely"}
    blocks = [[step], [step, event], [step]]  # the first is the start, which may be typed
    (tmp_path / "crepe").mkdir()
    (tmp_path / "crepe/data_dev_v2.json").write_text(json.dumps({"1": {"goal": "Cook", "steps": blocks}}))
    rows = counted(tmp_path, "crepe")
    assert rows["procedures"][:4] == ["42", "1", "141", "–"]
    assert (rows["steps"][1], rows["event changes"][1], rows["tokens of a step"][1]) == ("2", "1", "3.0")


def test_wiqa_counts_questions_by_type_hops_and_answer(tmp_path: Path) -> None:
    def question(kind: str, nodes: int, answer: str) -> dict[str, Any]:
        about = {"para_id": "7", "graph_id": "3", "question_type": kind, "path_len": nodes}
        return {"question": {"answer_label": answer}, "metadata": about}

    lines = [question("INPARA_EFFECT", 2, "more"), question("EXOGENOUS_EFFECT", 4, "less")]
    lines.append(question("OUTOFPARA_DISTRACTOR", 0, "no_effect"))
    (tmp_path / "wiqa").mkdir()
    (tmp_path / "wiqa/test.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "wiqa/para_id.prompt.topic.partition.tsv").write_text("para_id\ttopic\npropara_7\train\n")
    rows = counted(tmp_path, "wiqa")
    expected = {"topics": 1, "paragraphs": 1, "influence graphs": 1, "questions": 3, "in-para": 1, "out-of-para": 1}
    expected |= {"no effect": 1, "one hop": 1, "two hops": 0, "three hops": 1, "answer no effect": 1}
    assert {name: int(rows[name][5]) for name in expected} == expected
    assert rows["questions"][4] == "3,993"


def test_boxes_counts_the_files_of_each_archive(tmp_path: Path) -> None:
    (tmp_path / "boxes").mkdir()
    lines = [json.dumps({"sample_id": number // 7}) for number in range(14)]
    write_encrypted(tmp_path / "boxes/mine.zip", {"test.jsonl": lines, "train.jsonl": lines[:7]})
    rows = counted(tmp_path, "boxes")
    assert [cell for cell in rows["mine"] if cell != "–"] == ["1", "2", "7", "14"]
    assert rows["NumOps"].count("20,790") == 1
