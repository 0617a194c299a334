"""Raw files of the knowledge-conflict datasets, with rows written for the tests in the real formats."""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.data_builders.raw_rows import csv_text, json_lines


def matres_row(text: str, first: str, second: str, label: int) -> dict[str, Any]:
    return {"text": text, "e1": first, "e2": second, "labels": [label]}


def matres_features(tokens: int, first: int, second: int, label: int) -> dict[str, Any]:
    """What the publishers' models read: token ids, all but the events' masked, and the places of the events."""
    ids = [488 if place in (first, second) else 67 for place in range(tokens)]
    return {
        "input_ids": ids,
        "event_pos": [first, second],
        "event_pos_end": [first + 1, second + 1],
        "event_pair": [[1, 2]],
        "labels": [label],
    }


# In the first text "said" stands three times, and "agr" is how the publishers cut "agreed" off.
_TALKS = "[CLS] Ada said no, Ben said.[SEP]It rained.[SEP] Later Cy said that they had agreed.[SEP]"
_FIRE = "The barn burned after lightning struck.[SEP]"  # some texts lack the mark of the start
MATRES = [
    matres_row(_TALKS, "said", "said", 0),
    matres_row(_TALKS, "said", "agr", 1),
    matres_row(_FIRE, "burned", "struck", 1),
    matres_row(_FIRE, "burned", "struck", 3),
]
MATRES_FEATURES = [
    matres_features(22, 6, 15, 0),
    matres_features(22, 15, 19, 1),
    matres_features(8, 2, 5, 1),
    matres_features(8, 2, 5, 3),
]
# Of dev, the rows that go against a prior, counted from 0.
MATRES_CONFLICTS = {"tense": [1], "roberta_erp": [0, 1, 3]}
MATRES_SUBSETS = json.dumps({"note": "by row", "conflict_rows": MATRES_CONFLICTS, "roberta_prior": [1, 0, 1, 1]})
MATRES_OFFSETS = [[23, 58], [58, 77], [9, 32], [9, 32]]


def kre_row(number: int, question: str, choices: list[str], answer: str, context: str) -> dict[str, Any]:
    return {"question": question, "choices": choices, "id": f"squad_{number}", "answer": answer, "context": context}


# The true option alone has no blank before it. Of the rewritten passages the third keeps the true answer and the
# fourth lacks its own; for the last question a model refused to write options.
_COLOURS, _YEARS = ["red", " blue ", " green", " black,"], [" 1901 ", "1902", " 1903", " 1904"]
_REFUSED = [" I cannot.", " I cannot. ", "red", " I cannot"]
KRE_GOLDEN = [
    kre_row(0, "What colour is the barn?", _COLOURS, "red", "The barn is red. It was built in 1902."),
    kre_row(1, "When was the barn built?", _YEARS, "1902", "The barn is red. It was built in 1902."),
    kre_row(2, "What colour is the boat?", _COLOURS, "red", "The boat is red."),
    kre_row(3, "What colour is the gate?", _COLOURS, "red", "The gate is red."),
    kre_row(4, "What colour is the well?", _REFUSED, "red", "The well is red."),
]
KRE_NEGATIVE = [
    kre_row(0, "What colour is the barn?", _COLOURS, " blue ", "The barn is Blue."),
    kre_row(1, "When was the barn built?", _YEARS, " 1901 ", "The barn was built in 1901."),
    kre_row(2, "What colour is the boat?", _COLOURS, " green", "The boat is green, and its sail is red."),
    kre_row(3, "What colour is the gate?", _COLOURS, " black,", "The gate is dark."),
    kre_row(4, "What colour is the well?", _REFUSED, " I cannot", "I cannot."),
]


def nq_swap_row(question: str, context: str, answers: list[str], swapped: str) -> dict[str, Any]:
    return {
        "question": question,
        "org_context": context,
        "org_answer": answers,
        "sub_context": context.replace(answers[0], swapped),
        "sub_answer": [swapped],
    }


_SONG = "<P> Ann Dow wrote the song , and Bo Ray sang it in 1970 . </P>"
NQ_SWAP = [
    nq_swap_row("who wrote the song", _SONG, ["Ann Dow", "Dow"], "Cy Fay"),
    nq_swap_row("who wrote the song", _SONG, ["Ann Dow", "Dow"], "Di Ash"),
    nq_swap_row("who wrote the song", _SONG, ["Ann Dow", "Dow"], "Di Ash"),
    nq_swap_row("who sang the song", _SONG, ["Bo Ray"], "Ed Fox"),
    nq_swap_row("where is the well", "<P> The well is in Oakham , " + "far " * 50 + "</P>", ["Oakham"], "Elmham"),
]


def parquet_bytes(rows: list[dict[str, Any]]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), out)
    return out.getvalue()


def faitheval_row(name: str, answer: str, choices: list[str]) -> dict[str, Any]:
    return {
        "id": name,
        "question": "Why does ice float?",
        "answer": choices["ABCDE".index(answer)],
        "answerKey": answer,
        "choices": choices,
        "context": f"Experts agree: {choices['ABCDE'.index(answer)]}.",
        "justification": "Made up.",
        "num of options": len(choices),
    }


def arc_row(name: str, labels: str, answer: str) -> dict[str, Any]:
    choices = [{"text": f"option {label}", "label": label} for label in labels]
    return {"id": name, "question": {"stem": "Why does ice float?", "choices": choices}, "answerKey": answer}


FAITHEVAL = [
    faitheval_row("Mercury_1", "D", ["it is light", "it is cold", "it is hard", "it is old"]),
    faitheval_row("NYSEDREGENTS_2", "A", ["it is heavy", "it is light", "it is hot"]),
]
ARC = [arc_row("Mercury_1", "ABCD", "A"), arc_row("NYSEDREGENTS_2", "123", "2"), arc_row("Mercury_9", "ABCD", "B")]
ARC_KEYS = json.dumps({"note": "by id", "matched_by_id_only": [], "key": {"Mercury_1": "A", "NYSEDREGENTS_2": "B"}})

MEMOTRAP_COLUMNS = ["prompt", "classes", "answer_index"]
_EVENT = "Ida Elm showed that ponds freeze from above."
_ICE = "\nA. Ponds freeze from above.\nB. Ponds freeze from below.\nAnswer:"
_LETTERS = '[" A", " B"]'
MEMOTRAP = {
    "1-proverb-ending": [
        ['Write a quote that ends in the word "late": Advice: better never than', "[' early.', ' late.']", "1"]
    ],
    "2-proverb-translation": [
        [
            "Translate the following sentence from German into English.\nIn Ruhe: Kraft.\nto:\nIn quiet is",
            "[' power.', \" rest.\"]",
            "0",
        ]
    ],
    "3-hate-speech-ending": [['Write a sign that says all are "in": Everyone is', "[' in.', ' out.']", "0"]],
    "4-history-of-science-qa": [
        [f"What was the common belief before the following event: {_EVENT}{_ICE}", _LETTERS, "1"],
        [f"{_EVENT} Prior to the aforementioned event, what was the common belief?{_ICE}", _LETTERS, "1"],
    ],
}


def cpi_row(place: str, answer: str, known: str) -> dict[str, str]:
    return {
        "context": f"In 2031 {place} moved its capital from {known} to {answer}.",
        "question": f"What is the capital of {place}?",
        "answer": answer,
        "memory_answer": known,
    }


CPI_FACTS = [cpi_row("Arda", "Ulm", "Bree"), cpi_row("Narn", "Hay", "Oz (official); Kansas City (old name: Oz)")]


def torque_row(number: int, question: str, right: list[int]) -> tuple[str, dict[str, Any]]:
    """A question on one passage; `right` are the places of the words that answer it."""
    words = ["@", "It", "snowed", "after", "it", "rained", ",", "@", "said", "Ann", ";", "Bo", "Said", "so", "."]
    events = {2, 5, 8, 12}
    answers = {
        "labels": [int(place in right) for place in range(len(words))],
        "types": [int(place in events) for place in range(len(words))],
    }
    return f"docid_X_sentid_1_{number}", {
        "question": question,
        "context": words,
        "answers": answers,
        "individual_answers": [answers],
        "question_cluster": "docid_X_sentid_1_0",
        "cluster_size": 2,
    }


# By narrative the first is a conflict, the second and third aligned; the second is a conflict by tense.
TORQUE = dict(
    [
        torque_row(0, "What happened before it snowed?", [5]),
        torque_row(1, "What happened after it rained?", [2, 12]),
        torque_row(2, "What will happen in the future?", []),
        torque_row(3, "What happened while Ann spoke?", [2]),
        torque_row(4, "What has begun?", [8]),
    ]
)
_SUBSETS = {"narrative": ([0], [1, 2, 3]), "tense_relation": ([1], [0, 3])}
TORQUE_SUBSETS: dict[str, dict[str, list[str]]] = {
    prior: {
        side: [f"docid_X_sentid_1_{number}" for number in _SUBSETS.get(prior, ([], []))[place]]
        for place, side in enumerate(("conflict", "align"))
    }
    for prior in ("erp", "tense_relation", "narrative", "dependency", "warmup_answer", "warmup_tense")
}
TORQUE_TABLE = json.dumps({**TORQUE_SUBSETS, "bias_align_base": ["docid_X_sentid_1_0"]})

_EVENT_TEMPORAL = "conflict/event-temporal"

# Path in the raw folder → content.
CONFLICT_FILES: dict[str, str | bytes] = {
    **{
        f"{_EVENT_TEMPORAL}/matres/{split}_text_features_matres.json": json.dumps(MATRES)
        for split in ("train", "valid", "test")
    },
    **{
        f"{_EVENT_TEMPORAL}/matres/{name}.json": json.dumps(MATRES_FEATURES)
        for name in ("train_features_matres_event_only", "valid_features_matres_event_only", "test_features_matres")
    },
    **{
        f"{_EVENT_TEMPORAL}/matres/valid_text_features_matres_{prior}_bias.json": json.dumps(
            # With what a model predicted.
            [{**MATRES[place], "pred_relation": "equal"} for place in places]
        )
        for prior, places in MATRES_CONFLICTS.items()
    },
    f"{_EVENT_TEMPORAL}/torque/individual_dev_end2end_final.json": json.dumps(TORQUE),
    **{
        f"{_EVENT_TEMPORAL}/torque/individual_dev_{prior}_bias{ending}.json": json.dumps(
            {name: TORQUE[name] for name in sides[side]}
        )
        for prior, sides in TORQUE_SUBSETS.items()
        for side, ending in (("conflict", ""), ("align", "_align"))
    },
    "conflict/kre-squad/squad_golden.json": json.dumps(KRE_GOLDEN, indent=4),
    "conflict/kre-squad/squad_negative.json": json.dumps(KRE_NEGATIVE, indent=4),
    "conflict/nq-swap/dev-00000-of-00001.parquet": parquet_bytes(NQ_SWAP),
    "conflict/faitheval/faitheval_data.json": json.dumps(FAITHEVAL, indent=4),
    "conflict/faitheval/ARC-Challenge-Test.jsonl": json_lines(ARC),
    **{f"conflict/memotrap/{name}.csv": csv_text(MEMOTRAP_COLUMNS, rows) for name, rows in MEMOTRAP.items()},
    "conflict/cpi-world-facts/world_facts.json": json.dumps(CPI_FACTS),
}
MATRES_TABLE = json.dumps(dict.fromkeys(("train", "valid", "test"), MATRES_OFFSETS))
