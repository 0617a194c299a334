"""Raw files of the question-answering and choice datasets, with rows written for the tests in the real formats."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterable
from typing import Any


def json_lines(rows: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def tempreason_row(identity: str, question: str, answer: str, page: str) -> dict[str, Any]:
    return {
        "question": question,
        "text_answers": {"text": [answer]},
        "id": identity,
        "date": "",
        "fact_context": f"{answer} was mayor from May, 1901 to May, 1903. \nZoe Hall was mayor from May, 1903. ",
        "context": page,
    }


def timeqa_row(index: str, question: str, paragraphs: list[str], answer: str) -> dict[str, Any]:
    """A row whose page is a heading and the paragraphs; the answer's position is that of its first occurrence."""
    page = " ".join(["Title", *paragraphs])
    start = page.index(answer) if answer else 0
    return {
        "idx": index,
        "question": question,
        "context": page,
        "targets": [answer],
        "from": [start],
        "end": [start + len(answer)],
        "paragraphs": [{"title": "Title", "text": f" {text}"} for text in paragraphs],
    }


# The page of Q1 is in the test under another entity, with other blanks.
TEMPREASON_TEST = [
    tempreason_row(
        "L3_Q1_P6_0", "Who was mayor\u00a0before Zoe Hall?", "Ian Wood", "OakhamOakham is a town. Ian Wood."
    ),
    tempreason_row("L3_Q2_P6_0", "Who was mayor after Al Low?", "Bo Ray", "ElmhamElmham is long. " + "word " * 700),
]
TEMPREASON_TRAIN = [
    tempreason_row("L3_Q2_P6_9", "Who was mayor before Bo Ray?", "Al Low", "Another page of the same town."),
    tempreason_row("L3_Q3_P6_0", "Who was mayor before Di Ash?", "Ed Fox", "OakhamOakham is a town.  Ian Wood."),
    tempreason_row("L3_Q4_P6_0", "Who was mayor before Jo Fir?", "Kit Lee", "AshhamAshham is a village."),
]
TEMPREASON_TIMEBENCH = [
    {
        "question": "Who was mayor before Zoe Hall?",
        "answer": ["Ian Wood"],
        "context": "OakhamOakham is a town. Ian Wood.",
        "fact_context": "Ian Wood was mayor from May, 1901 to May, 1903. \nZoe Hall was mayor from May, 1903. ",
    }
]

_CLUBS = ["Ann Dow is a player .", "She joined Hill FC in 1990 .", "She moved to Dale FC in 1995 .", "She retired ."]
TIMEQA_TEST = [
    timeqa_row("/wiki/Ann_Dow#P54#0", "Which team did Ann Dow play for in early 1990s?", _CLUBS, "Hill FC"),
    timeqa_row("/wiki/Ann_Dow#P54#1", "Which team did Ann Dow play for in 1970?", _CLUBS, ""),
    timeqa_row(
        "/wiki/Ann_Dow#P54#2", "Which team did Ann Dow play for in 1996?", [*_CLUBS, "word " * 1000], "Dale FC"
    ),
]
TIMEQA_TRAIN = [
    timeqa_row("/wiki/Ann_Dow#P54#7", "Which team did Ann Dow play for in 1996?", _CLUBS, "Dale FC"),
    timeqa_row(
        "/wiki/Ben_Eck#P54#0",
        "Which team did Ben Eck play for in late 1980s?",
        ["far " * 400, "before " * 200, "He played for Moor FC in 1988 .", "after " * 200, "away " * 400],
        "Moor FC",
    ),
    timeqa_row("/wiki/Ben_Eck#P54#1", "Which team did Ben Eck play for in 1950?", ["He is young ."], ""),
    timeqa_row("/wiki/Cy_Fay#P54#0", "Which team did Cy Fay play for?", ["word " * 700 + "Lake FC"], "Lake FC"),
]
TIMEQA_TIMEBENCH = [
    {
        "question": "Which team did Ann Dow play for in early 1990s?",
        "context": " ".join(_CLUBS),
        "answer": ["Hill FC"],
        "question_type": "in_implicit",
        "idx": "/wiki/Ann_Dow#P54#0",
    },
    {
        "question": "Which team did Ann Dow play for in 1970?",
        "context": " ".join(_CLUBS),
        "answer": [""],
        "question_type": "in_implicit",
        "idx": "/wiki/Ann_Dow#P54#1",
    },
    {
        "question": "Which team did Ann Dow play for in 1971?",
        "context": " ".join(_CLUBS),
        "answer": ["Vale FC"],
        "question_type": "in_implicit",
        "idx": "/wiki/Ann_Dow#P54#2",
    },
]

COSMOSQA_COLUMNS = ["id", "context", "question", "answer0", "answer1", "answer2", "answer3", "label"]


def csv_text(header: list[str], rows: Iterable[list[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerows([header, *rows])
    return text.getvalue()


_PARK = ["He was bored .", "He was late .", "None of the above choices .", 'He said , " come " .']
COSMOSQA_TEST = [
    ["t-0", "I met Tom .\nHe left .", "Why did Tom leave ?", *_PARK, "1"],
    ["t-1", "I met Tom .\nHe left .", "Why did Tom leave ?", *reversed(_PARK), "0"],
    ["t-2", "I met Ida .", "What is different now ?", *_PARK, "3"],
    ["t-3", "I met Jo .", "If Jo had stayed , what then ?", *_PARK, "0"],
]
COSMOSQA_TRAIN = [
    ["a-0", "i met IDA !", "What may have been ?", *_PARK, "3"],
    ["a-1", "I met Max .", "What may have been ?", "", *_PARK[1:], "3"],
    ["a-2", "I met Max .", "What may have been ?", _PARK[1], *_PARK[1:], "3"],
    ["a-3", "I met Max .", "What if Max had stayed ?", *_PARK, "3"],
]
COSMOSQA_INSTRUCTIONS = {
    "Title": "Answering questions",
    "Definition": "Write one answer.",
    "Instances": [
        {"input": "Context: I met Ida . \nQuestion: What may have been ?", "output": ["Nothing ."]},
        *(
            {
                "input": f"Context: Story {number // 2} . \nQuestion: What may be {number} ?",
                "output": [f"It is {number} .", f"Maybe {number} ."],
            }
            for number in range(20)
        ),
    ],
    "Examples": {},
}


def ester_row(type_: str, question: str, spans: list[str], context: str) -> dict[str, Any]:
    return {
        "context": context,
        "question": question,
        "question_event": "storm",
        "answer_texts": spans,
        "answer_indices": ["(0,1)" for _ in spans],
        "events": ["storm"],
        "original_events": {"spans": [], "indices": []},
        "type": type_,
    }


_STORM = "A storm came.\nTrees fell, and a roof flew off."
ESTER_TEST = [
    ester_row("Causal", "What did the storm lead to?", ["Trees fell", "a roof flew off", "Trees fell"], _STORM),
    ester_row("Causal", "What did the terrific storm lead to?", ["Trees fell"], _STORM),
    ester_row("Causal", "If a storm comes, what falls?", ["Trees fell"], _STORM),
    ester_row("Counterfactual Conditional", "What would not have fallen?", ["Trees fell"], _STORM),
    ester_row("Indicative Conditional", "What may happen after a storm?", ["Trees fell"], _STORM),
    ester_row("Indicative Conditional", "What may happen if a storm comes?", ["Trees fell"], _STORM),
    ester_row("Sub-event", "What does the storm include?", ["Trees fell"], _STORM),
    ester_row("Coreference", "What is the storm?", ["A storm"], _STORM),
]
ESTER_TRAIN = [
    ester_row("Causal", "What caused the fire?", ["a spark"], "A fire broke out after a spark."),
    ester_row("Causal", "What caused the fire?", ["spark"], "A fire broke out after a spark."),
    ester_row(
        "Causal", "What caused the trees to fall?", ["A storm"], "A storm came. Trees fell, and a roof flew off."
    ),
    ester_row("Causal", "What caused the spark?", [" "], "A fire broke out after a spark."),
]


def ifqa_rows(*questions: str) -> str:
    rows = [
        {
            "idx": number,
            "question": question,
            "answers": ["Rome", "the Romans", "Rome"],
            "context": ["First .", "Second ."],
        }
        for number, question in enumerate(questions)
    ]
    return json.dumps(rows)


def wiqa_row(paragraph: str, steps: list[str], label: str) -> dict[str, Any]:
    return {
        "question": {
            "stem": "suppose more rain happens, how will it affect less dust.",
            "para_steps": steps,
            "answer_label": label,
            "answer_label_as_choice": "C",
            "choices": [{"label": "A", "text": "more"}, {"label": "B", "text": "less"}],
        },
        "metadata": {
            "ques_id": f"influence_graph:{paragraph}:1#0",
            "graph_id": "1",
            "para_id": paragraph,
            "question_type": "INPARA_EFFECT",
            "path_len": 2,
        },
    }


WIQA_TEST = [wiqa_row("7", ["Clouds gather", "It rains.", ""], label) for label in ("more", "no_effect")]
WIQA_TRAIN = [
    wiqa_row("7", ["Clouds go away"], "less"),
    wiqa_row("8", ["Clouds gather.", "It rains"], "less"),
    wiqa_row("9", ["Wind blows"], "less"),
]

SOCIALIQA = [
    {"context": "Ann fell.", "question": "Why?", "answerA": "ice", "answerB": "joy", "answerC": "rain"},
    {"context": "Ann sang.", "question": "How?", "answerA": "glad", "answerB": "sad", "answerC": "glad"},
]
ALPHANLI = [
    {"story_id": "s-1", "obs1": "Ann ran.", "obs2": "Ann fell.", "hyp1": "She slipped.", "hyp2": "She slept."},
]

STORYCLOZE_COLUMNS = [
    "InputStoryid",
    *(f"InputSentence{number}" for number in range(1, 5)),
    "RandomFifthSentenceQuiz1",
    "RandomFifthSentenceQuiz2",
    "AnswerRightEnding",
]
STORYCLOZE = [["s-1", "Ann ran.", "It was icy.", "She slipped, badly.", "She fell.", "She flew.", "She cried.", "2"]]

_SALES = "Prices rose. So sales fell, and profit fell."
_BLANK_PAIR = {"type": "prevent", "reason": [], "result": [[0, 10]]}
CQA_TEST = [
    {
        "tid": 1,
        "info": _SALES,
        "extraInfo": None,
        "labelData": [
            {"type": "cause", "reason": [[0, 12]], "result": [[16, 26]]},
            {"type": "cause", "reason": [[0, 12]], "result": [[32, 43]]},
            {"type": "enable", "reason": [[0, 11]], "result": [[0, 11]]},
            {"type": "enable", "reason": [[0, 11], [16, 26]], "result": [[32, 45]]},
        ],
    },
    {"tid": 2, "info": "Low prices help.", "extraInfo": None, "labelData": [_BLANK_PAIR]},
]


def converted_cqa_row(passage: str, context: str) -> dict[str, Any]:
    return {
        "original": passage,
        "context": context,
        "question": "What is the reconstructed sentence?",
        "question_type": "cause",
        "answers": "",
        "id": "0",
    }


CQA_TRAIN = {
    "version": "v1.0",
    "data": [
        converted_cqa_row("Prices rose! So sales fell and profit fell.", "[Cause] a [Relation] cause [Effect] b"),
        converted_cqa_row(
            "Firms say a strike could halt work.", "[Cause] a strike [Relation] prevent [Effect] halt work"
        ),
        converted_cqa_row("A strike began. Work stopped.", "[Cause] A strike | began [Relation] cause [Effect] Work"),
        converted_cqa_row("A strike began.", "[Cause] A strike [Relation] cause [Effect] "),
    ],
}


# Path in the raw folder → content; the forms that stand in for an official file are in SUBSTITUTES.
FILES: dict[str, str | bytes] = {
    "tempreason/train_l3.json": json_lines(TEMPREASON_TRAIN),
    "tempreason/test_l3.json": json_lines(TEMPREASON_TEST),
    "timeqa/train.hard.json.gzip": gzip.compress(json_lines(TIMEQA_TRAIN).encode()),
    "timeqa/test.hard.json": json_lines(TIMEQA_TEST),
    "cosmosqa/train.csv": csv_text(COSMOSQA_COLUMNS, COSMOSQA_TRAIN),
    "cosmosqa/valid.csv": csv_text(COSMOSQA_COLUMNS, COSMOSQA_TEST),
    "ester/final_train_ans_gen.json": json.dumps(ESTER_TRAIN),
    "ester/final_dev_ans_gen.json": json.dumps(ESTER_TEST, indent=1),
    "cqa/raw/event_dataset_test.json": json.dumps(CQA_TEST),
    "cqa/reconstruct_rl/train.json": json.dumps(CQA_TRAIN),
    "wiqa/train.jsonl": json_lines(WIQA_TRAIN),
    "wiqa/test.jsonl": json_lines(WIQA_TEST),
    "ood/socialiqa/dev.jsonl": json_lines(SOCIALIQA),
    "ood/socialiqa/dev-labels.lst": "1\n3\n",
    "ood/alphanli/dev.jsonl": json_lines(ALPHANLI),
    "ood/alphanli/dev-labels.lst": "1\n",
    "ood/storycloze/cloze_test_val__spring2016.csv": csv_text(STORYCLOZE_COLUMNS, STORYCLOZE),
    "ifqa/full_split/train.json": ifqa_rows("If A, who?", "If B, who?", "If C, who?", "if c, who?", "If D, who?"),
    "ifqa/full_split/dev.json": ifqa_rows("If b, Who?", "If X, who?"),
    "ifqa/full_split/test.json": ifqa_rows("if a, who?", "If X, who?", "If X, who?"),
}
SUBSTITUTES: dict[str, str | bytes] = {
    "tempreason/event-event_839.jsonl": json_lines(TEMPREASON_TIMEBENCH),
    "timeqa/timeqa_hard_500.jsonl": json_lines(TIMEQA_TIMEBENCH),
    "cosmosqa/subtask024_cosmosqa_answer_generation.json": json.dumps(COSMOSQA_INSTRUCTIONS),
    "ester/final_train_ans_gen_500completed.json": json.dumps(ESTER_TRAIN[:1]),
}
