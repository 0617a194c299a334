"""OpenPI2.0 as a benchmark: scripted answers through every task, and the command line with a tiny random model."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from d2e_sft.util.errors import UserError
from eval.run.engines.conversation_task import Conversation
from eval.systems.openpi2 import runs
from eval.systems.openpi2.planner import Verdict
from eval.systems.openpi2.salience_gold import HUMAN, SECOND_HUMAN
from eval.systems.openpi2.system import OPENPI2
from eval.systems.system import SystemCall, SystemResult, parse_options
from tests.command import d2e
from tests.eval.systems.openpi2.procedures import judged, save, save_official
from tests.tiny import save_tiny_model

Reply = Callable[[str, Conversation], str]


@dataclass
class Scripted:
    """A model whose answers are given by pass and conversation; remembers what it was asked."""

    reply: Reply
    model: str = "scripted"
    decoding: Any = field(default_factory=lambda: SimpleNamespace(engine="openai"))
    asked: dict[str, Sequence[Conversation]] = field(default_factory=dict)
    sampling: dict[str, tuple[float, int]] = field(default_factory=dict)

    def ask(
        self,
        name: str,
        conversations: Sequence[Conversation],
        *,
        max_new_tokens: int | None = None,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> list[str]:
        assert name not in self.asked, "a pass has a name of its own"
        assert len({chat.id for chat in conversations}) == len(conversations)
        self.asked[name], self.sampling[name] = conversations, (temperature, seed)
        return [self.reply(name, chat) for chat in conversations]


def run(data: Path, reply: Reply, *given: str, max_samples: int | None = None) -> tuple[SystemResult, Scripted]:
    asker: Any = Scripted(reply)
    options = parse_options(OPENPI2.options, given, "openpi2")
    return OPENPI2.run(SystemCall(data, options, max_samples, 0), asker), asker


def rescored(tmp_path: Path, result: SystemResult, name: str, gold: Path, task: str) -> dict[str, Any]:
    path = tmp_path / name
    path.write_text(result.files[name])
    options = parse_options(OPENPI2.score_options, [f"task={task}"], "openpi2")
    return OPENPI2.score(path, gold, options).scores


SCHEMATA = {
    "1/1": "water (temperature, place), kettle (temperature)",
    "1/2": "tea (existence)",
    "2/1": "you (posture)",
}
SENTENCES = {
    "1/1": "- heat of water was cold before and hot after\n- size of kettle was small before and big after",
    "1/2": "- existence of tea was absent before and brewed after",
    "2/1": "I cannot tell.",
}
STATES = {
    "1/1/1": "Before: cold\nAfter: hot",
    "1/1/2": "Before: tap\nAfter: kettle",
    "1/1/3": "Before: cool\nAfter: hot",
    "1/2/1": "Before: absent\nAfter: made",
    "2/1/1": "standing before and lying after",
}


def tracked(name: str, chat: Conversation) -> str:
    replies = {"s": STATES} if name == "states" else {"s": SCHEMATA if name.startswith("schemata") else SENTENCES}
    return replies["s"][chat.id]


def test_the_three_tasks_are_asked_and_scored(tmp_path: Path) -> None:
    data = save_official(tmp_path)
    result, asker = run(data, tracked)
    scores = result.scores
    assert scores["schemata_global_f1"] == scores["schemata_global_f1_expanded"] == 1
    assert scores["complete_f1"] == pytest.approx(0.5)
    assert scores["states_accuracy"] == 3 / 5
    assert scores["states"]["corrected"]["accuracy"] == 4 / 5
    assert list(asker.asked) == [
        *("schemata-step1", "schemata-step2", "states", "complete-step1", "complete-step2"),
    ]
    assert [chat.id for chat in asker.asked["schemata-step2"]] == ["1/2"]
    gold = tmp_path / "v2.0"
    for task, file in (("schemata", "expanded"), ("complete", "expanded"), ("states", "ranked")):
        path = gold / {"expanded": runs.EXPANDED, "ranked": runs.RANKED}[file]
        again = rescored(tmp_path, result, f"{task}.json", path, task)
        assert again == {key: scores[key] for key in again}


def test_the_text_form_keeps_the_line_and_gives_it_back(tmp_path: Path) -> None:
    data = save_official(tmp_path)
    result, asker = run(data, lambda *_: " cold before and hot after\n- more", "task=states", "prompt=text")
    assert list(asker.asked) == [f"states-{number}" for number in range(1, 5)]
    assert result.scores["states_accuracy"] == 2 / 5
    last = asker.asked["states-4"][0].messages[-1]["content"]
    assert "kettle was cold before and hot after\nStep" in last
    result, asker = run(data, lambda *_: "tea (existence)\nStep: more", "task=schemata", "prompt=text")
    assert json.loads(result.files["schemata.json"])["2"] == [{"tea": ["existence"]}]


def test_max_samples_counts_procedures(tmp_path: Path) -> None:
    result, asker = run(save_official(tmp_path), tracked, max_samples=1)
    assert result.scores["schemata"]["procedures"] == result.scores["states"]["procedures"] == 1
    assert len(asker.asked["schemata-step1"]) == 1
    assert "1 of 2 procedures" in result.tables[0].markdown()


def test_without_paraphrases_nothing_is_scored_with_expansion(tmp_path: Path) -> None:
    from tests.eval.systems.openpi2.procedures import clustered

    save(tmp_path / runs.CLUSTERED, clustered())
    result, _ = run(tmp_path, tracked, "task=schemata")
    assert "schemata_global_f1_expanded" not in result.scores
    with pytest.raises(UserError, match=r"holds no dev-ranked\.json, which task=states needs"):
        run(tmp_path, tracked, "task=states")


def test_salience_is_asked_one_entity_after_the_other(tmp_path: Path) -> None:
    values = {"water": (5, [5, 2]), "kettle": (3, [4, 0]), "tea": (4, [0, 5])}
    save(tmp_path / HUMAN, judged(values))
    save(tmp_path / SECOND_HUMAN, judged(values))

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
    again = rescored(tmp_path, result, "salience.json", tmp_path / HUMAN, "salience")
    assert again["salience_global"] == result.scores["salience_global"]


def test_clusters_are_asked_several_times_with_seeds_of_their_own(tmp_path: Path) -> None:
    base = {"goal": "Fry", "steps": ["Heat the pan."]}
    names = ["pan", "skillet", "the pan", "egg"]
    files = {
        runs.ENTITY_INPUT: {"1": base | {"entities": [], "entities_flattened": names}},
        runs.ENTITY_GOLD: {"1": base | {"entities": [["pan", "the pan", "skillet"], ["egg"]]}},
        runs.ATTRIBUTE_INPUT: {
            "1": base
            | {"entity_attr_dict": {"pan | skillet": ["heat | warmth", "place"], "egg": ["size | volume"], "oil": []}}
        },
        runs.ATTRIBUTE_GOLD: {
            "1": base
            | {"entity_attr_dict": {"pan | skillet": ["heat | warmth", "place"], "egg": ["size | volume"], "oil": []}}
        },
    }
    for name, content in files.items():
        save(tmp_path / "cluster_mini" / name, content)

    def group(name: str, chat: Conversation) -> str:
        if name.startswith("attribute"):
            assert chat.id == "1/pan | skillet", "one entry is one cluster and is not asked about"
            return "The groups are:\n- ['heat', 'warmth']\n- ['place']"
        return "- ['pan', 'egg']" if name.endswith("run1") else "- ['skillet', 'pan']\n- ['egg']"

    result, asker = run(tmp_path, group, "task=clusters", "repeats=2", "entity_runs=3", "attribute_runs=2")
    assert result.scores["entities_cluster_f1"] == result.scores["attributes_cluster_f1"] == 1
    assert len(asker.asked) == 2 * 3 + 2
    entity_passes = [value for name, value in asker.sampling.items() if name.startswith("entity")]
    assert entity_passes == [(0.7, seed) for seed in range(6)]
    for file, gold, task in (
        ("entity_clusters_1.json", runs.ENTITY_GOLD, "entity_clusters"),
        ("attribute_clusters.json", runs.ATTRIBUTE_GOLD, "attribute_clusters"),
    ):
        again = rescored(tmp_path, result, file, tmp_path / "cluster_mini" / gold, task)
        assert [value for name, value in again.items() if name.endswith("f1")] == [1]


def test_expansion_joins_new_names_into_a_file_to_score_against(tmp_path: Path) -> None:
    def name_more(name: str, chat: Conversation) -> str:
        if chat.id == "1/kettle":
            return "['The Kettle', 'pot']" if name.endswith("run1") else "['pot', 'urn']"
        return "None"

    data = save_official(tmp_path)
    result, asker = run(data, name_more, "task=expansion", "expansion_runs=2")
    assert len(asker.asked["expansion-run1"]) == 4 + 5
    cluster = json.loads(result.files["expanded.json"])["1"]["clusters"]["kettle"]
    assert cluster["entity_overgenerate"] == ["pot", "urn"]
    assert cluster["entity_cluster_combined"] == ["kettle", "pot", "urn"]
    # The fixture's file has the paraphrases H2O and pot of entities.
    assert result.scores["expansion"]["entities"] == {
        "clusters": 4,
        "paraphrases": 2,
        "in_official": 0.5,
        "of_official": 0.5,
    }
    gold = tmp_path / "own.json"
    gold.write_text(result.files["expanded.json"])
    predictions = save(tmp_path / "p.json", {"1": [{"urn": ["temperature"]}, {}]})
    options = parse_options(OPENPI2.score_options, [], "openpi2")
    official = OPENPI2.score(predictions, gold, options).scores["schemata"]["official"]
    assert official["expanded"]["entities_global"]["gold_found"] == 1
    assert official["plain"]["entities_global"]["gold_found"] == 0


CREPE = {
    "7": {
        "goal": "Brew tea",
        "steps": [
            [{"step": "Start."}],
            [
                {"type": "step", "step": "Heat the kettle."},
                {"type": "event", "event": "It whistles.", "change": "more likely"},
            ],
            [
                {"type": "step", "step": "Take it off."},
                {"type": "entity", "entity": "kettle", "attribute": "hot", "change": "less likely"},
                {"type": "event", "event": "It whistles.", "change": "less likely"},
            ],
        ],
    }
}


def test_crepe_with_no_all_and_salient_states(tmp_path: Path) -> None:
    file = save(tmp_path / "data_dev_v2.json", CREPE)

    def answer(name: str, chat: Conversation) -> str:
        if name == "entity-states-step1":
            return "- heat of kettle was cold before and hot after\n- noise of room was low before and high after\nBye"
        if name == "entity-states-step2":
            return "- heat of kettle was hot before and hot after"
        if name.startswith("salience"):
            return "5" if chat.messages[-1]["content"] == "kettle" else "2"
        told = "heat of kettle" in chat.messages[-1]["content"]
        if name.startswith("crepe-none"):
            assert not told
            return "Hm."
        assert told
        return "More likely." if name.endswith("step1") else "It is less likely now."

    result, asker = run(tmp_path, answer, "task=crepe", f"crepe_file={file}")
    assert result.scores["crepe_macro_f1_all"] == result.scores["crepe_macro_f1_salient"] == 1
    assert result.scores["crepe_macro_f1_none"] == 0
    found = result.scores["crepe"]
    assert found["pairs"] == found["none"]["unparsed"] == 2
    assert (found["all"]["entities_a_step"], found["salient"]["entities_a_step"]) == (1.5, 1)
    assert result.scores["lines_that_are_no_state_change"] == 1
    assert "no state change, and are left out: 1" in result.tables[0].markdown()
    # An endpoint has no tokenizer, so words are counted; the salient prompts lack a sentence, in two turns.
    words = found["all"]["prompt_words"] - found["salient"]["prompt_words"]
    assert words == 2 * len(["noise", "of", "room", "was", "low", "before", "and", "high", "after"])
    assert found["salient"]["saved"] == pytest.approx(words / found["all"]["prompt_words"])
    hot = {"entity": "kettle", "attribute": "hot", "change": "more likely"}
    cold = {"entity": "kettle", "attribute": "cold", "change": "less likely"}
    assert json.loads(result.files["entities-salient.json"]) == {"7": {"1": [hot, cold], "2": [hot]}}
    assert len(json.loads(result.files["entities-all.json"])["7"]["1"]) == 4
    assert asker.asked["crepe-all-step2"][0].messages[-2]["content"] == "More likely."


def test_crepe_needs_its_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="needs CREPE's data file"):
        run(tmp_path, tracked, "task=crepe")
    broken = save(tmp_path / "broken.json", {"7": {"goal": "x", "steps": [[], [{"type": "event"}]]}})
    with pytest.raises(UserError, match=r"broken.json, 7.steps: .*exactly one item of type step"):
        run(tmp_path, tracked, "task=crepe", f"crepe_file={broken}")


def test_published_crepe_files_have_their_pairs(published_raw: Path) -> None:
    from eval.systems.openpi2.crepe_data import read_crepe

    for name, pairs in (("dev", 727), ("test", 1_520)):
        found = read_crepe(published_raw / "crepe" / f"data_{name}_v2.json")
        assert sum(len(labels) for item in found.values() for labels in item.events.values()) == pairs


def test_planning_tasks_are_told_the_states_that_were_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "make_planner", lambda seconds: lambda domain, _: Verdict("solvable", domain, 1))

    def answer(name: str, chat: Conversation) -> str:
        if name.startswith("entity-states"):
            return "- heat of kettle was cold before and hot after"
        if name.startswith("salience"):
            return "3"
        return "(define (domain x))"

    result, asker = run(tmp_path, answer, "task=pddl", "entities=all", max_samples=2)
    assert all("heat of kettle" in chat.messages[0]["content"] for chat in asker.asked["pddl"])
    assert result.scores["pddl_solvable"] == 1
    assert len(json.loads(result.files["pddl_tasks.json"])) == 2
    _, asker = run(tmp_path, answer, "task=pddl", "entities=salient", "salient=4", max_samples=2)
    assert not any("heat of kettle" in chat.messages[0]["content"] for chat in asker.asked["pddl"])
    assert any(name.startswith("salience") for name in asker.asked)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    save_tiny_model(folder / "model", seed=3, positions=16_384)  # its tokens are bytes
    save_official(folder / "openpi2")
    return folder


def test_the_command_line_runs_it_and_scores_its_files_the_same(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--bench", "openpi2", "--data", world / "openpi2", "--out", tmp_path, "--max-new-tokens", 4)
    assert d2e("eval", world / "model", *where, "--alpha", "0.5", "--max-samples", 1) == 0
    assert "| attributes, global |" in capsys.readouterr().out
    folder = tmp_path / "eval" / "openpi2"
    scores = json.loads((folder / "scores.json").read_text())
    gold = world / "openpi2" / "v2.0"
    for task, name in (("schemata", runs.EXPANDED), ("states", runs.RANKED), ("complete", runs.EXPANDED)):
        arguments = ("--predictions", folder / f"{task}.json", "--gold", gold / name, "--set", f"task={task}")
        assert d2e("score", "openpi2", *arguments, "--json", "-") == 0
        printed = json.loads(capsys.readouterr().out)
        assert printed == {key: scores[key] for key in printed}


def test_how_to_score_is_no_part_of_what_was_asked() -> None:
    options = parse_options(OPENPI2.options, ["task=states", "bertscore_model=any", "planner_seconds=3"], "openpi2")
    assert options.variant == "task=states", "so that answers are kept when a scorer is added"


@pytest.mark.parametrize(
    ("predictions", "task", "problem"),
    [
        ({"9": []}, "schemata", "p.json, 9: no such procedure"),
        ({"1": [{}]}, "schemata", "expected one item for each of the 2 steps"),
        ({"1": [{"tea": "x"}, {}]}, "schemata", '1[0].tea: got "x"; expected an array'),
        ({"1": [[], [1]]}, "complete", "1[1][0]: got 1; expected a text"),
        ({}, "schemata", "not empty"),
        ({"1": [[], []]}, "sentences", "task"),
    ],
)
def test_unfit_predictions_are_one_message(
    tmp_path: Path, predictions: Any, task: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    gold = save_official(tmp_path) / "v2.0" / runs.EXPANDED
    path = save(tmp_path / "p.json", predictions)
    assert d2e("score", "openpi2", "--predictions", path, "--gold", gold, "--set", f"task={task}") != 0
    shown = capsys.readouterr()
    assert problem in shown.err + shown.out
    assert "Traceback" not in shown.err
