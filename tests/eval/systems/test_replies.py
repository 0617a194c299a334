"""Replies of models to the systems: what is read from them, from code to words."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from d2e_sft.data.conversation import prompt_turns
from data_builders.sources import SOURCES
from eval.run.task import TaskItem
from eval.systems.boxes.answers import contents_of, in_words_of_t5, read_all, read_one
from eval.systems.crepe.benchmark import FAMILIES
from eval.systems.crepe.code import most_frequent
from eval.systems.crepe.gold import EQUALLY, LESS, MORE
from eval.systems.crepe.parse import (
    changes_of,
    read_change,
    read_code,
    read_lettered_levels,
    read_level,
    read_option,
    read_truth,
    read_yes_or_no,
)
from eval.systems.crepe.prompts import clause, drawn_demonstrations, load_demonstrations
from eval.systems.openpi2.clusters import parse_groups
from eval.systems.openpi2.gold import normalise
from eval.systems.openpi2.salience import first_integer
from eval.systems.openpi2.schemata import parse_schema
from eval.systems.openpi2.states import parse_change, parse_sentences, parse_states
from eval.systems.wiqa.benchmark import WIQA, polarity_of
from eval.systems.wiqa.gold import label_of
from tests.eval.systems import crepe_perfect as perfect
from tests.eval.systems.crepe_perfect import FROM_FIRST, rule_of, write_events
from tests.eval.systems.crepe_procedures import BURN, run
from tests.eval.systems.files import save

PLAIN = (
    read_level, read_yes_or_no, read_change, read_option, read_truth, most_frequent, clause, label_of, polarity_of,
    in_words_of_t5, parse_schema, normalise, parse_states, parse_sentences, parse_change, parse_groups, first_integer,
)  # fmt: skip
READERS: Any = {
    **{reader.__name__: reader for reader in PLAIN},
    "read_lettered_levels": lambda reply: read_lettered_levels(reply.replace("ENDLESS", "9" * 5_000), 4),
    "read_answer": lambda reply: WIQA.read_answer(reply, None),  # type: ignore[arg-type]
    "read_all of five": lambda reply: read_all(reply, ["Box 0", "Box 1", "Box 2", "Box 10", "Box 3"]),
    "read_all of two": lambda reply: read_all(reply, ["Box 0", "Box 1"]),
    "read_one": lambda reply: read_one(reply, "Box 1"),
    "contents_of": lambda reply: sorted(contents_of(reply)),
}
REPLIES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
CASES = [(name, *case) for name, cases in REPLIES.items() if name != "code" for case in cases]


@pytest.mark.parametrize(("reader", "reply", "expected"), CASES)
def test_a_reply_is_read(reader: str, reply: str, expected: Any) -> None:
    assert json.loads(json.dumps(READERS[reader](reply))) == expected


FORMS = [(prompt, entities) for prompt, family in FAMILIES.items() for entities in family.entities]


def asked(folder: Path, say: Any, prompt: str, entities: str, **options: Any) -> Any:
    """Ask `say` by a form of prompt; predicted states come from a file."""
    if entities == "predicted":
        states = {"3": {"1": [{"entity": "kettle", "attribute": "hot", "change": "more likely"}]}, "5": {}}
        options["entities_file"] = save(folder / "states.json", states)
    return run(folder / "data", say, prompt=prompt, entities=entities, **options)


@pytest.mark.parametrize(("prompt", "entities"), FORMS)
def test_a_model_that_is_always_right_scores_one(tmp_path: Path, prompt: str, entities: str) -> None:
    result, _ = asked(tmp_path, rule_of(prompt, entities), prompt, entities, shots=0)
    assert result.scores["unparsed"] == {"share": 0.0, "pairs": 0}
    if prompt in FROM_FIRST:
        # Two pairs of the first step change.
        assert result.scores["confusion"] == [[4, 0, 0], [1, 1, 0], [1, 0, 1]]
    else:
        assert result.scores["macro_f1"] == result.scores["corrected"]["macro_f1"] == 1


@pytest.mark.parametrize(("prompt", "entities"), FORMS)
def test_unreadable_replies_are_no_change(tmp_path: Path, prompt: str, entities: str) -> None:
    scores = asked(tmp_path, lambda _: "Hm?", prompt, entities, shots=1)[0].scores
    assert scores["unparsed"] == {"share": 1.0, "pairs": 8}
    assert scores["macro_f1"] == scores["baselines"]["majority"]["macro_f1"]


def test_demonstrations_are_not_of_the_benchmark_and_agree_with_themselves(crepe_raw: Path) -> None:
    published = "".join(path.read_text(encoding="utf-8") for path in crepe_raw.glob("*.json"))
    for shown in load_demonstrations():
        for text in (shown.goal, *shown.steps, *(event.event for event in shown.events)):
            assert text not in published
        for event in shown.events:
            assert any(event.label(step) for step in range(1, len(shown.steps) + 1)), "something changes"
            assert all(
                (event.label(step) == 0) == (event.state_label(step) == 0) for step in range(1, len(shown.steps) + 1)
            )


def test_random_demonstrations_come_by_seed_and_by_event() -> None:
    drawn = [drawn_demonstrations(3, seed, by_event=True) for seed in range(20)]
    events = [[event.event for shown in each for event in shown.events] for each in drawn]
    assert drawn == [drawn_demonstrations(3, seed, by_event=True) for seed in range(20)]
    assert len({tuple(each) for each in events}) > 15
    assert {len(set(each)) for each in events} == {3}, "no event twice"
    assert {len(shown.events) for shown in drawn_demonstrations(3, 4, by_event=False)} == {2}


def test_the_first_step_is_compared_with_nothing(tmp_path: Path) -> None:
    said = {"3/event0/step1": "unlikely", "3/event0/step2": "likely", "3/event0/step3": "Hm."}
    result, _ = run(tmp_path, lambda chat: said.get(chat.id, "likely"), prompt="text")
    predicted = [
        [row["change"] for row in block if row["type"] == "predicted_event"]
        for block in json.loads(result.files["crepe_predictions.json"])["3"]["steps"][1:]
    ]
    assert predicted == [[], ["more likely"], []]
    assert result.scores["unparsed"]["pairs"] == 1


def test_a_reply_may_repeat_the_code_before_its_step(tmp_path: Path) -> None:
    def repeat(chat: TaskItem) -> str:
        before = "\n".join(message["content"] for message in chat.messages[1:])
        return f"```python\n{before}\n{write_events(chat)}\n```"

    result, _ = run(tmp_path, repeat, entities="gold", shots=0)
    assert result.scores["macro_f1"] == 1


@pytest.mark.parametrize(
    ("more", "less", "label", "inconsistent"),
    [("True", "False", 2, 0), ("False", "True", 1, 0), ("False", "False", 0, 0), ("True", "True", 0, 8)],
)
def test_contradicting_answers_change_nil(tmp_path: Path, more: str, less: str, label: int, inconsistent: int) -> None:
    said = {"more": more, "less": less}
    result, _ = run(
        tmp_path,
        lambda chat: f"the answer to the original question is {said[chat.id.rpartition('/')[2]]}",
        prompt="two_questions",
    )
    assert [row[label] for row in result.scores["confusion"]] == [sum(row) for row in result.scores["confusion"]]
    assert result.scores["inconsistent"] == inconsistent
    assert result.scores["unparsed"]["pairs"] == 0


def test_a_trained_model_is_asked_as_trained(tmp_path: Path) -> None:
    source = SOURCES["strategyqa"]
    _, asker = run(tmp_path, perfect.say_true_or_false, prompt="two_questions")
    chat = asker.passes[0][1][0]
    row = prompt_turns(source.prompt, source.system, f"Is it more likely that {BURN.removesuffix('.')}?")
    assert (chat.messages, chat.imagined) == (row.messages("Boil the water."), row.messages(""))


@pytest.mark.parametrize(
    ("levels", "likely", "labels"),
    [
        ([1, 1, 0, None, 0, 1], 1, [EQUALLY, EQUALLY, LESS, None, EQUALLY, MORE]),
        ([None, 1], 1, [None, MORE]),  # officially the first readable level is a change
        ([None, 1], 2, [None, LESS]),
        ([], 1, []),
    ],
)
def test_each_level_is_compared_with_the_last_readable_one(levels: Any, likely: int, labels: Any) -> None:
    assert changes_of(levels, likely) == labels


@pytest.mark.parametrize("case", REPLIES["code"])
def test_functions_are_steps_by_their_place(case: dict[str, Any]) -> None:
    expected = [*case["labels"], *[[None, None]] * (3 - len(case["labels"]))]
    assert read_code(case["reply"].replace("ENDLESS", "9" * 5_000), 3, 2, case["parse"]).labels == expected


def test_attributes_of_objects_are_entity_changes() -> None:
    found = read_code(REPLIES["code"][0]["reply"], 3, 2, "official").entities
    assert [[(c.entity, c.attribute, c.change) for c in changes] for changes in found] == [
        [("kettle", "hot", "True")],
        [],
        [("kettle", "hot", "False")],
    ]
