"""OpenPI2.0's other tasks: runs with scripted answers, clusters, expansion, salience, CREPE, BERTScore."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from scipy.stats import pearsonr
from transformers import BertConfig, BertModel, BertTokenizer

from d2e_sft.data.conversation import prompt_turns
from d2e_sft.util.errors import UserError
from data_builders.sources import SOURCES
from eval.run.task import TaskItem
from eval.systems.benchmark import parse_options
from eval.systems.crepe.gold import read_procedures as read_crepe
from eval.systems.crepe.gold import read_states
from eval.systems.openpi2 import clusters, salience
from eval.systems.openpi2.benchmark import OPENPI2
from eval.systems.openpi2.clusters import (
    ATTRIBUTE_GOLD,
    ATTRIBUTE_INPUT,
    ENTITY_GOLD,
    ENTITY_INPUT,
    read_gold_groups,
    read_predicted_groups,
    score_clusters,
)
from eval.systems.openpi2.gold import EXPANDED, RANKED, read_official
from eval.systems.openpi2.salience import agreement, check_same_entities, read_judges, read_salience
from eval.systems.openpi2.task import bert_scorer, best_scores
from tests.command import call
from tests.eval.systems.crepe_procedures import entity, event, step
from tests.eval.systems.files import save
from tests.eval.systems.openpi2_procedures import judged, rescored, run, save_official

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


def tracked(name: str, chat: TaskItem) -> str:
    replies = {"schemata": SCHEMATA, "states": STATES, "complete": SENTENCES}
    return replies[name.partition("-")[0]][chat.id]


def test_the_three_tasks_are_asked_and_scored(tmp_path: Path) -> None:
    data = save_official(tmp_path)
    result, asker = run(data, tracked)
    scores = result.scores
    assert scores["schemata_global_f1"] == scores["schemata_global_f1_expanded"] == 1
    assert scores["complete_f1"] == pytest.approx(0.5)
    assert scores["states_accuracy"] == 3 / 5
    assert scores["states"]["corrected"]["accuracy"] == 4 / 5
    assert list(asker.asked) == ["schemata-step1", "schemata-step2", "states", "complete-step1", "complete-step2"]
    assert [chat.id for chat in asker.asked["schemata-step2"]] == ["1/2"]
    gold = tmp_path / "v2.0"
    for task, file in (("schemata", EXPANDED), ("complete", EXPANDED), ("states", RANKED)):
        again = rescored(tmp_path, result, f"{task}.json", gold / file, task)
        assert again == {key: scores[key] for key in again}


def test_procedures_are_paired_by_id_and_it_is_told_where_position_would_pair_others(tmp_path: Path) -> None:
    data = save_official(tmp_path / "raw")
    result, _ = run(data, tracked, "task=schemata")
    written = json.loads(result.files["schemata.json"])
    moved = save(tmp_path / "moved.json", {"2": written["2"], "1": written["1"]})
    part = save(tmp_path / "part.json", {"1": written["1"]})
    for path, warning in ((moved, "2 procedures are not at the same place"), (part, "")):
        said = call("score", "openpi2", "--predictions", path, "--gold", data, "--json", "-")
        if path is moved:
            assert json.loads(said.out)["schemata_global_f1"] == result.scores["schemata_global_f1"]
        assert warning in said.err
        assert bool(warning) == ("the official script pairs them by position" in said.err)


CASES = yaml.safe_load(Path(__file__).with_name("test_openpi2.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES["aggregate"], ids=lambda case: case["why"])
def test_the_most_frequent_group_is_taken_first(case: dict[str, Any]) -> None:
    assert clusters.aggregate(case["names"], case["answers"], leftovers=case["leftovers"]) == case["clusters"]


def test_names_that_differ_by_article_or_plural_are_one_before_asking() -> None:
    names = ["the berries", "Berry", "glass", "a glass", "eggs", "egg", "bus", "bu"]  # officially egg is too short
    groups = [["the berries", "Berry"], ["glass", "a glass"], ["eggs"], ["egg"], ["bus"], ["bu"]]
    assert clusters.merge_alike(names) == {group[0]: group for group in groups}


@pytest.mark.parametrize("case", CASES["clusters"], ids=lambda case: case["why"])
def test_officially_the_names_of_precision_and_recall_are_swapped(case: dict[str, Any]) -> None:
    for rule, found in score_clusters({"1": {"": CASES["gold_clusters"]}}, {"1": {"": case["said"]}}).items():
        assert [found.predicted_right, found.predicted, found.gold_found, found.gold] == case[rule]


def test_entities_with_one_gold_cluster_are_skipped() -> None:
    gold = {"1": {"pan": (("heat", "warmth"), ("place",)), "egg": (("size",),)}}
    predicted = {"1": {"pan": (("heat", "warmth"), ("place",)), "egg": (("size",), ("wrong",))}}
    scores = score_clusters(gold, predicted)
    assert (scores["official"].f1, scores["official"].gold, scores["corrected"].f1) == (1, 2, 1)


def test_published_labels_scored_against_themselves(published_raw: Path) -> None:
    folder = published_raw / "openpi2" / "v2.0" / "cluster_mini"
    entities = read_gold_groups(folder / ENTITY_GOLD)
    attributes = read_gold_groups(folder / ATTRIBUTE_GOLD)
    assert len(entities) == len(attributes) == len(read_official(folder / ENTITY_INPUT)) == 10
    assert score_clusters(entities, entities)["corrected"].f1 == 1
    found = score_clusters(attributes, attributes)
    assert (found["official"].f1, found["corrected"].f1) == (1, 1)


def test_clusters_are_asked_several_times_with_seeds_of_their_own(tmp_path: Path) -> None:
    base = {"goal": "Fry", "steps": ["Heat the pan."]}
    names = ["pan", "skillet", "the pan", "egg"]
    attributes = {"pan | skillet": ["heat | warmth", "place"], "egg": ["size | volume"], "oil": []}
    files = {
        ENTITY_INPUT: {"1": base | {"entities": [], "entities_flattened": names}},
        ENTITY_GOLD: {"1": base | {"entities": [["pan", "the pan", "skillet"], ["egg"]]}},
        ATTRIBUTE_INPUT: {"1": base | {"entity_attr_dict": attributes}},
        ATTRIBUTE_GOLD: {"1": base | {"entity_attr_dict": attributes}},
    }
    for name, content in files.items():
        save(tmp_path / "cluster_mini" / name, content)

    def group(name: str, chat: TaskItem) -> str:
        if "heat of pan" in chat.messages[-1]["content"]:
            return "The groups are:\n- ['warmth of pan', 'heat of pan']\n- ['place of pan']"
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
        ("entity_clusters_1.json", ENTITY_GOLD, "entity_clusters"),
        ("attribute_clusters.json", ATTRIBUTE_GOLD, "attribute_clusters"),
    ):
        again = rescored(tmp_path, result, file, tmp_path / "cluster_mini" / gold, task)
        assert [value for name, value in again.items() if name.endswith("f1")] == [1]
    result, _ = run(tmp_path, group, "task=clusters", "attribute_form=concise", "attribute_runs=1", "entity_runs=3")
    assert result.scores["attributes_cluster_f1"] == 1, "what the form adds is left out again"


def test_concise_predictions_are_read_without_what_the_form_adds(tmp_path: Path) -> None:
    published = {"1": {"pan | skillet": {"heat of pan": ["warmth of pan"], "place of pan": ["place of pan"]}}}
    path = save(tmp_path / "p.json", published)
    gold = {"1": {"pan | skillet": [("heat", "warmth"), ("place",)]}}
    assert read_predicted_groups(path, gold, "attributes", "concise") == gold
    assert score_clusters(gold, read_predicted_groups(path, gold, "attributes", "concise"))["official"].f1 == 1
    assert score_clusters(gold, read_predicted_groups(path, gold, "attributes"))["official"].f1 == 0, (
        "as the evaluator"
    )


def test_expansion_joins_new_names_into_a_file_to_score_against(tmp_path: Path) -> None:
    def name_more(name: str, chat: TaskItem) -> str:
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
    gold = save(tmp_path / "own.json", result.files["expanded.json"])
    predictions = save(tmp_path / "p.json", {"1": [{"urn": ["temperature"]}, {}]})
    options = parse_options(OPENPI2.score_options, [], "openpi2")
    official = OPENPI2.score(predictions, gold, options).scores["schemata"]["official"]
    assert official["expanded"]["entities_global"]["gold_found"] == 1
    assert official["plain"]["entities_global"]["gold_found"] == 0


FIRST = {"water": (5, [5, 2]), "kettle": (3, [4, 0]), "tea": (-1, [0, 9])}
SECOND = {"water": (4, [5, 0]), "kettle": (4, [3, 1]), "tea": (5, [0, 5])}


def test_agreement_appends_a_zero_and_maps_global_strangers_to_it(tmp_path: Path) -> None:
    first = read_salience(save(tmp_path / "first.json", judged(FIRST)))
    second = read_salience(save(tmp_path / "second.json", judged(SECOND, predicted=True)))
    overall = agreement(first, second, "global")
    assert overall[0] == pytest.approx(pearsonr([5, 3, 0, 0], [4, 4, 5, 0])[0])
    local = agreement(first, second, "local")
    assert local[0] == pytest.approx(pearsonr([5, 2, 4, 0, 0, 9, 0], [5, 0, 3, 1, 0, 5, 0])[0])
    corrected = agreement(first, second, "local", official=False)
    assert corrected[0] == pytest.approx(pearsonr([5, 2, 4, 0, 0, 5], [5, 0, 3, 1, 0, 5])[0])


def test_a_constant_judge_is_defined_only_by_the_appended_zero(tmp_path: Path) -> None:
    first = read_salience(save(tmp_path / "first.json", judged(FIRST)))
    same = {name: (5, [5, 5]) for name in FIRST}
    constant = read_salience(save(tmp_path / "second.json", judged(same, predicted=True)))
    assert agreement(first, constant, "global")[0] == pytest.approx(pearsonr([5, 3, 0, 0], [5, 5, 5, 0])[0])
    assert agreement(first, constant, "global", official=False)[0] is None
    silent = {name: (0, [0, 0]) for name in FIRST}
    nothing = read_salience(save(tmp_path / "third.json", judged(silent, predicted=True)))
    assert agreement(first, nothing, "global")[0] is None


# Procedures 1, 2, 9 and 17 in the authors' plotting script.
PLOTTED = {
    "second annotator": (0.9822342150200971, 0.9701332571277855, 0.6181339274290045, 0.33597216268584346),
    "votes": (0.6494838734146026, 0.8378212485037868, -0.3665083330689156, -0.041431188531779684),
    "saliency score": (0.5214263032495494, 0.42871373503653704, 0.6829344150623702, 0.05732144017320891),
}


def test_published_annotators_agree_as_published(published_raw: Path) -> None:
    folder = published_raw / "openpi2" / "v2.0"
    judges = read_judges(folder / salience.HUMAN)
    first, second = judges.first, judges.others["second annotator"]
    check_same_entities(first, second, folder / salience.SECOND_HUMAN)
    assert len(second) == 20
    # Table 7: .759 and .578.
    assert agreement(first, second, "global")[0] == pytest.approx(0.75941, abs=1e-5)
    assert agreement(first, second, "local")[0] == pytest.approx(0.57764, abs=1e-5)
    assert agreement(first, first, "global")[0] == pytest.approx(1)
    for name, plotted in PLOTTED.items():
        found = agreement(first, judges.others[name], "global")[1]
        assert [found[key] for key in ("1", "2", "9", "17")] == pytest.approx(plotted)
    assert judges.goals["1"] == "Make a Simple Inside Windshield Cleaner"


def test_salience_is_asked_one_entity_after_the_other(tmp_path: Path) -> None:
    values = {"water": (5, [5, 2]), "kettle": (3, [4, 0]), "tea": (4, [0, 5])}
    save(tmp_path / salience.HUMAN, judged(values))
    save(tmp_path / salience.SECOND_HUMAN, judged(values))

    def rate(name: str, chat: TaskItem) -> str:
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


def test_votes_and_scores_are_judges_if_every_state_has_them(tmp_path: Path) -> None:
    content = judged({**FIRST, "tea": (1, [0, 5])})
    path = save(tmp_path / "first.json", content)
    assert read_judges(path).others == {}, "the states of this file have no votes of their own"
    for votes, state in enumerate(content["1"]["states"]):
        state["votes"] = 10 * votes
    judges = read_judges(save(tmp_path / "voted.json", content))
    assert [count.overall for count in judges.others["votes"]["1"]] == [0, 10, 20]
    assert agreement(judges.first, judges.others["votes"], "global")[0] == pytest.approx(
        pearsonr([5, 3, 1, 0], [0, 10, 20, 0])[0]
    )
    content["1"]["states"][0]["votes"] = "many"
    with pytest.raises(UserError, match=r"damaged.json: 1.0.overall: got 'many'"):
        read_judges(save(tmp_path / "damaged.json", content))


WHISTLE = "It whistles."
CREPE = {
    "7": {
        "goal": "Brew tea",
        "steps": [
            [{"step": "Start."}],
            [step("Heat the kettle."), event(WHISTLE, "more likely")],
            [step("Take it off."), entity("kettle", "hot", "less likely"), event(WHISTLE, "less likely")],
        ],
    }
}


def test_crepe_with_no_all_and_salient_states(tmp_path: Path) -> None:
    file = save(tmp_path / "data_dev_v2.json", CREPE)

    def answer(name: str, chat: TaskItem) -> str:
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


def test_states_of_crepes_steps_are_asked_in_the_words_of_the_training_rows(tmp_path: Path) -> None:
    file, source = save(tmp_path / "data_dev_v2.json", CREPE), SOURCES["openpi"]

    def answer(_: str, chat: TaskItem) -> str:
        heated = "- heat of kettle was cold before and hot afterwards\nHm."
        return heated if chat.id == "7/1" else "There will be no change."

    result, asker = run(tmp_path, answer, "task=crepe_states", f"crepe_file={file}")
    ((_, chats),) = asker.passes
    row = prompt_turns(source.prompt, source.system, "What does the latest step change?")
    assert [chat.id for chat in chats] == ["7/1", "7/2"]
    assert (chats[1].messages, chats[1].imagined) == (row.messages("Heat the kettle. Take it off."), row.messages(""))
    assert result.scores["crepe_states"] == {"procedures": 1, "steps": 2, "changes": 1, "entities_a_step": 0.5}
    assert result.scores["lines_that_are_no_state_change"] == 1
    hot = {"entity": "kettle", "attribute": "hot", "change": "more likely"}
    states = save(tmp_path / "states.json", json.loads(result.files["entities-all.json"]))
    assert json.loads(states.read_text()) == {"7": {"1": [hot, hot | {"attribute": "cold", "change": "less likely"}]}}
    assert [len(step) for step in read_states(states, read_crepe(file))["7"]] == [2, 0]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny BERT whose vocabulary is letters."""
    pytest.importorskip("bert_score", reason="the extra openpi2 is not installed")
    folder = tmp_path_factory.mktemp("bert")
    letters = "abcdefghijklmnopqrstuvwxyz"
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=len(vocabulary), **sizes)).save_pretrained(folder)
    return str(folder)


def test_scores_are_the_packages_own_and_one_for_the_same_text(bert: str) -> None:
    scorer = bert_scorer(bert, 2)
    same, other, empty, no_reference, again = scorer(
        ["hot", "cold water", "", "hot", "hot"], ["hot", "hot tea", "hot", " ", "hot"]
    )
    assert math.isclose(same, 1, abs_tol=1e-5)
    assert 0 < other < 1
    assert (empty, no_reference) == (0, 0)
    assert again == same
    from bert_score import BERTScorer

    direct = BERTScorer(model_type=bert, num_layers=2)
    direct._tokenizer.model_max_length = 512
    assert math.isclose(other, direct.score(["cold water"], ["hot tea"])[2].item(), abs_tol=1e-6)


def test_the_best_of_several_references_counts_and_texts_without_one_do_not() -> None:
    lengths = [("abc", ["a", "abcd"]), ("x", []), ("ab", ["ab"])]
    scores = best_scores(lambda texts, references: [len(r) / 10 for r in references], lengths)
    assert scores == [0.4, 0.2]
