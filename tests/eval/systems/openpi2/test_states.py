"""States, by hand and on the published gold."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from eval.systems.openpi2.gold import RANKED
from eval.systems.openpi2.states import StatePair, States, exact_matches, parse_states, states_bertscore
from eval.systems.openpi2.task import ScorerOptions
from tests.eval.systems.files import save
from tests.eval.systems.openpi2.procedures import ranked, run, save_official


@pytest.mark.parametrize(
    ("reply", "states"),
    [
        ("cool before and hot after", ("cool", "hot")),
        (" cool before and hot afterwards. ", ("cool", "hot")),
        ("cool before and hot after it", ("cool", "hot")),
        ("Before: cool\nAfter: hot", ("cool", "hot")),
        ("Sure!\nBefore: in the pan\nAfter: on the plate\n", ("in the pan", "on the plate")),
        ("It gets hot.", ("Error", "Error")),
        ("", ("Error", "Error")),
    ],
)
def test_states_are_read_from_both_forms(reply: str, states: tuple[str, str]) -> None:
    assert parse_states(reply) == states


def pairs(*steps: Sequence[tuple[str, str]]) -> dict[str, list[list[StatePair]]]:
    return {"1": [[StatePair("x", "y", *states) for states in step] for step in steps]}


def test_states_are_compared_with_the_first_alternative_or_with_any(tmp_path: Path) -> None:
    changes = States().read_gold(save(tmp_path / "ranked.json", ranked()), None)
    predicted = pairs([("cold", "hot"), ("tap", "Kettle"), ("cold", "warm")], [("absent", "made")])
    assert exact_matches(predicted, changes, any_alternative=False) == [True, False, False, False]
    assert exact_matches(predicted, changes, any_alternative=True) == [True, False, False, True]
    assert States().evaluate(changes, predicted, ScorerOptions(task="states"), 0).scores["states_accuracy"] == 0.25


def test_states_bertscore_is_the_mean_over_both_states(tmp_path: Path) -> None:
    changes = States().read_gold(save(tmp_path / "ranked.json", ranked()), None)
    predicted = pairs([("cold", "hot"), ("sink", "kettle"), ("cool", "hot")], [("absent", "made")])
    seen: list[tuple[str, str]] = []

    def equal(candidates: Sequence[str], references: Sequence[str]) -> list[float]:
        seen.extend(zip(candidates, references, strict=True))
        return [float(a == b) for a, b in zip(candidates, references, strict=True)]

    assert states_bertscore(predicted, changes, equal) == 5 / 8
    assert seen[2] == ("sink", "tap")
    assert seen[-1] == ("made", "brewed"), "the first accepted state is the reference"


def test_gold_states_may_stand_in_the_predictions_own_format(tmp_path: Path) -> None:
    path = save(tmp_path / "gold.json", {"1": [[["water", "heat", "cold | cool", "hot"]]]})
    gold = States().read_gold(path, None)
    said = save(tmp_path / "p.json", {"1": [[["water", "heat", "cool", "hot"]]]})
    predicted = States().read_predictions(said, gold, None)
    assert exact_matches(predicted, gold, any_alternative=True) == [True]
    assert exact_matches(predicted, gold, any_alternative=False) == [False]


def test_published_gold_scored_against_itself(published_raw: Path) -> None:
    changes = States().read_gold(published_raw / "openpi2" / "v2.0" / RANKED, None)
    same = {
        key: [[StatePair("", "", state.before[0], state.after[0]) for state in step] for step in steps]
        for key, steps in changes.items()
    }
    assert sum(exact_matches(same, changes, any_alternative=False)) == 1_324


def test_the_text_form_keeps_the_line_and_gives_it_back(tmp_path: Path) -> None:
    data = save_official(tmp_path)
    result, asker = run(data, lambda *_: " cold before and hot after\n- more", "task=states", form="completion")
    assert list(asker.asked) == [f"states-{number}" for number in range(1, 5)]
    assert result.scores["states_accuracy"] == 2 / 5
    last = asker.asked["states-4"][0].messages[-1]["content"]
    assert "kettle was cold before and hot after\nStep" in last
    result, asker = run(data, lambda *_: "tea (existence)\nStep: more", "task=schemata", form="one_turn")
    assert json.loads(result.files["schemata.json"])["2"] == [{"tea": ["existence"]}]


def test_states_of_other_changes_are_scored_against_the_gold_file_beside_them(tmp_path: Path) -> None:
    gold = save(tmp_path / "raw" / RANKED, ranked())
    fewer = save(tmp_path / "llama.json", {"1": [[["water", "temperature", "cold", "hot"]], []]})
    options = ScorerOptions(task="states")
    with pytest.raises(UserError, match="expected one for each of the 3 gold changes of step 1"):
        States().score(fewer, gold, options)
    beside = save(tmp_path / "llama_gold.json", {"1": [[["water", "temperature", "cool | cold", "hot"]], []]})
    result = States().score(fewer, gold, options)
    assert (result.scores["states_accuracy"], result.scores["states"]["changes"]) == (0, 1)
    assert result.scores["states"]["corrected"]["accuracy"] == 1
    assert result.scores["gold"] == str(beside)
    assert "it was scored against" in result.warnings[0]
    whole = save(tmp_path / "whole.json", {"2": [[["you", "posture", "standing", "lying"]]]})
    save(tmp_path / "whole_gold.json", {"2": [[["you", "posture", "up", "down"]]]})
    assert States().score(whole, gold, options).scores["states_accuracy"] == 1, "what fits is not replaced"
