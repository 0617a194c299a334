"""Salience: asking for it, reading it, and how well two judges agree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scipy.stats import pearsonr

from d2e_sft.util.errors import UserError
from eval.run.task import Conversation
from eval.systems.openpi2 import salience
from eval.systems.openpi2.gold import read_official
from eval.systems.openpi2.judgements import Judges, agreement, check_same_entities, read_salience
from tests.eval.systems.files import save
from tests.eval.systems.openpi2.procedures import judged, rescored, run


@pytest.mark.parametrize(("reply", "number"), [("4 - it matters", 4), ("Pan: 35", 35), ("much", 1), ("", 1)])
def test_salience_is_the_first_integer_or_one(reply: str, number: int) -> None:
    assert salience.first_integer(reply) == number


FIRST = {"water": (5, [5, 2]), "kettle": (3, [4, 0]), "tea": (-1, [0, 9])}
SECOND = {"water": (4, [5, 0]), "kettle": (4, [3, 1]), "tea": (5, [0, 5])}


def test_agreement_appends_a_zero_and_maps_global_strangers_to_it(tmp_path: Path) -> None:
    first = read_salience(save(tmp_path / "first.json", judged(FIRST)))
    second = read_salience(save(tmp_path / "second.json", judged(SECOND, predicted=True)))
    overall = agreement(first, second, "global")
    assert overall.mean == pytest.approx(pearsonr([5, 3, 0, 0], [4, 4, 5, 0])[0])
    local = agreement(first, second, "local")
    assert local.mean == pytest.approx(pearsonr([5, 2, 4, 0, 0, 9, 0], [5, 0, 3, 1, 0, 5, 0])[0])
    corrected = agreement(first, second, "local", official=False)
    assert corrected.mean == pytest.approx(pearsonr([5, 2, 4, 0, 0, 5], [5, 0, 3, 1, 0, 5])[0])


def test_a_constant_judge_is_defined_only_by_the_appended_zero(tmp_path: Path) -> None:
    first = read_salience(save(tmp_path / "first.json", judged(FIRST)))
    same = {name: (5, [5, 5]) for name in FIRST}
    constant = read_salience(save(tmp_path / "second.json", judged(same, predicted=True)))
    assert agreement(first, constant, "global").mean == pytest.approx(pearsonr([5, 3, 0, 0], [5, 5, 5, 0])[0])
    assert agreement(first, constant, "global", official=False).mean is None
    silent = {name: (0, [0, 0]) for name in FIRST}
    nothing = read_salience(save(tmp_path / "third.json", judged(silent, predicted=True)))
    assert agreement(first, nothing, "global").mean is None


def test_only_the_first_twenty_procedures_are_judged(tmp_path: Path) -> None:
    content = judged(FIRST)
    content["21"] = {"states": "not read"}
    assert list(read_salience(save(tmp_path / "first.json", content))) == ["1"]


def test_predictions_of_other_entities_are_refused(tmp_path: Path) -> None:
    first = read_salience(save(tmp_path / "first.json", judged(FIRST)))
    content = judged(SECOND, predicted=True)
    content["1"]["states"].pop()
    second = read_salience(save(tmp_path / "second.json", content))
    with pytest.raises(UserError, match=r"second.json: 1: got the entities \['water', 'kettle'\]"):
        check_same_entities(first, second, tmp_path / "second.json")


def test_predictions_are_written_as_the_official_files_are(tmp_path: Path) -> None:
    path = save(tmp_path / "first.json", judged(FIRST))
    predicted = read_salience(save(tmp_path / "second.json", judged(SECOND)))
    written = json.loads(salience.salience_file(read_official(path), predicted))
    state = written["1"]["states"][0]
    assert (state["global_salience_pred"], state["answers"]["step2"]["local_salience_pred"]) == ("4", "0")
    assert state["answers"]["step1"]["attributes"][0]["attribute"] == "temperature"
    assert read_salience(save(tmp_path / "written.json", written)) == predicted
    scores = salience.salience_result(
        Judges(read_salience(path), {"second annotator": predicted}, {"1": "Tea"}), predicted
    ).scores
    assert scores["salience_global"] == scores["salience"]["second_annotator"]["global_official"]["mean"]


def test_published_annotators_agree_as_published(published_raw: Path) -> None:
    folder = published_raw / "openpi2" / "v2.0"
    first, second = read_salience(folder / salience.HUMAN), read_salience(folder / salience.SECOND_HUMAN)
    check_same_entities(first, second, folder / salience.SECOND_HUMAN)
    assert len(second) == 20
    # Table 7: .759 and .578.
    assert agreement(first, second, "global").mean == pytest.approx(0.75941, abs=1e-5)
    assert agreement(first, second, "local").mean == pytest.approx(0.57764, abs=1e-5)
    assert agreement(first, first, "global").mean == pytest.approx(1)


def test_salience_is_asked_one_entity_after_the_other(tmp_path: Path) -> None:
    values = {"water": (5, [5, 2]), "kettle": (3, [4, 0]), "tea": (4, [0, 5])}
    save(tmp_path / salience.HUMAN, judged(values))
    save(tmp_path / salience.SECOND_HUMAN, judged(values))

    def rate(name: str, chat: Conversation) -> str:
        overall, steps = values[chat.messages[-1]["content"]]
        return f"{overall if name.startswith('salience-global') else steps[int(chat.id[-1]) - 1]}: it boils over."

    result, asker = run(tmp_path, rate, "task=salience", "temperature=0.7")
    assert result.scores["salience_global"] == pytest.approx(1)
    assert result.scores["salience_local"] == pytest.approx(1)
    assert result.scores["salience"]["second_annotator"]["global_official"]["mean"] == pytest.approx(1)
    assert list(asker.asked) == [f"salience-{level}-{n}" for level in ("global", "local") for n in (1, 2, 3)]
    chats = [chat for asked in asker.asked.values() for chat in asked]
    assert any("it boils over" in str(chat.messages) for chat in chats)
    assert not any("it boils over" in str(chat.imagined) for chat in chats), "a reply may tell of the procedure"
    said = [message["content"] for message in asker.asked["salience-global-3"][0].messages[-5:]]
    assert said == ["water", "5: it boils over.", "kettle", "3: it boils over.", "tea"]
    assert set(asker.sampling.values()) == {(0.7, 0)}
    again = rescored(tmp_path, result, "salience.json", tmp_path / salience.HUMAN, "salience")
    assert again["salience_global"] == result.scores["salience_global"]
