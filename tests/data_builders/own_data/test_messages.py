"""What is wrong with own data, its description, conversations or questions: a message each (test_messages.yaml)."""

import json
from pathlib import Path

from data_builders.own_data.questions import read_questions
from tests.data_builders.own_rows import QA, QA_ROWS, rows_of, write
from tests.messages import Call, messages_of

SCQ = "train: mine.csv\nformat: scq\nrelation: causal\n"
CHAT = "train: mine.jsonl\nformat: chat\n"
HEAD, OPTIONS = "context,question,answer\n", "context,question,options,answer\n"
TAGS = "columns: {subset: kind, habit: guess}\n"
SAID = [{"role": "user", "content": "<doc>It rains. Ann runs.</doc> Why?"}, {"role": "assistant", "content": "Rain."}]
TWICE = {"doc": "It rains.", "messages": [{"role": "user", "content": "It rains. Why? It rains."}, SAID[1]]}
ANSWERED: dict[str, object] = {"context": "A b.", "question": "Why?"}
ASK = {"context": "A.", "question": "Q?"}


def rows(text: str, spec: str = QA) -> Call:
    return lambda tmp: str(rows_of(write(tmp, mine_yaml=spec, mine_csv=text)))


def described(spec: str) -> Call:
    return rows(QA_ROWS, spec)


def chat(extra: str, messages: object = SAID, name: str = "messages") -> Call:
    line = json.dumps({name: messages}) + "\n"
    return lambda tmp: str(rows_of(write(tmp, mine_yaml=CHAT + extra, mine_jsonl=line)))


def ids(given: int) -> Call:
    found = [ANSWERED | {"answer": "a"} for _ in range(2)]
    found[given]["id"] = "mine-train-2"  # the id that is made for a row without one
    text = "".join(json.dumps(row) + "\n" for row in found)
    return lambda tmp: str(rows_of(write(tmp, mine_yaml=QA.replace("csv", "jsonl"), mine_jsonl=text)))


def asked(name: str, text: str, mapping: str = "", fmt: str | None = None) -> Call:
    def call(tmp: Path) -> str:
        files = {"a.csv": "context,question\nA.,Q?\n", "b.csv": "context,question\nA.,Q?\n", "m.yaml": mapping}
        for file, content in {**files, name: text}.items():
            (tmp / file).write_text(content)
        return str(read_questions(tmp / name, mapping=tmp / "m.yaml" if mapping else None, fmt=fmt))

    return call


test_message = messages_of(__file__, {
    # Rows
    "blank context": rows(QA_ROWS + "  ,Why?,so\n"),
    "no answer": rows(QA_ROWS + "It rained.,Why?,\n"),
    "too long": rows(QA_ROWS + f"{'It rained. ' * 400_000},Why?,so\n"),
    "too few columns": rows(QA_ROWS + "It rained.,Why?\n"),
    "an open quote": rows(QA_ROWS + '"It rained.,Why?,so\n'),
    "no rows": rows(""),
    "a second header": rows(HEAD * 2 + "a,b,c\n"),
    "other columns": rows("passage,query,label\na,b,c\n"),
    "other columns of TSV": lambda tmp: str(rows_of(write(tmp, mine_yaml=QA.replace("csv", "tsv"),
                                                          mine_tsv="context\tquestion\tanswers\na\tb\tc\n"))),
    "other columns of Parquet": lambda tmp: str(rows_of(write(tmp, mine_yaml=QA.replace("csv", "parquet"),
                                                              mine_parquet=[ANSWERED | {"answers": "a"}]))),
    "another key of JSON": lambda tmp: str(rows_of(write(tmp, mine_yaml=QA.replace("csv", "jsonl"),
                                                         mine_jsonl=json.dumps(ANSWERED | {"answers": "a"})))),
    "an id in the first row only": ids(0),
    "an id in the second row only": ids(1),
    "another delimiter": rows("context;question;answer\nA b.;Why?;a\n"),
    "unknown relation": rows("context,question,answer,relation\nA b.,Why?,a,casual\n", "train: mine.csv\nformat: qa"),
    "an id twice": rows("id,context,question,answer\n1,A b.,Why?,a\n1,C d.,Why?,c\n"),
    "a column of repeated values as id": rows(
        "page,context,question,answer\n1,A b.,Why?,a\n1,C d.,Why?,c\n",
        "train: mine.csv\nformat: qa\ncolumns: {id: page}",
    ),
    "unknown label": rows(HEAD + "A b.,C.,entailment\n", QA.replace("qa", "nli")),
    "no option": rows(OPTIONS + "A b.,Why?,a cat|a dog,a dag\n", SCQ),
    "a letter": rows(OPTIONS + "A b.,Why?,cat|dog,B\n", SCQ),
    "a number": rows(OPTIONS + "A b.,Why?,cat|dog,1\n", SCQ),
    "a letter too many": rows(OPTIONS + "A b.,Why?,cat|dog,C\n", SCQ + "answer_as: letter\n"),
    "a number too small": rows(OPTIONS + "A b.,Why?,cat|dog,0\n", SCQ + "answer_as: from-1\n"),
    "one option": rows(OPTIONS + "A b.,Why?,cat;dog,cat\n", SCQ),
    "an option twice": rows(OPTIONS + "A b.,Why?,cat|cat,cat\n", SCQ),
    "unknown subset": rows("context,question,answer,kind,guess\nA b.,Why?,a,conflicts,b\n", QA + TAGS),
    "a conflict with the right answer": rows(
        HEAD.replace("\n", ",kind,guess\n") + "A b.,Why?,Ann Lee,aligned,Lee\nA b.,Why?,-5,conflict,5\n"
        + "A b.,Why?,barn,conflict,The barn.\n", QA + TAGS),
    "an aligned row with another option": rows(
        OPTIONS.replace("\n", ",kind,guess\n") + "A b.,Why?,First.|first.,First.,conflict,first.\n"
        + "A b.,Why?,First.|first.,First.,aligned,first.\n", SCQ + TAGS),
    "no subset": rows(QA_ROWS, QA + TAGS),
    "one context to divide": rows(HEAD + "".join(f"A b.,Why {n}?,a\n" for n in range(4)), QA + "test: 0.5\n"),
    "nothing to divide": rows(HEAD, QA + "test: 0.5\n"),
    "a right answer is rejected": rows("context,question,answer,b\nA b.,How?,a,a\n", QA + "columns: {rejected: b}\n"),
    "an answer that is NaN": lambda tmp: str(rows_of(write(tmp, mine_yaml=QA.replace("csv", "parquet"), mine_parquet=
        [ANSWERED | {"answer": 1.0}, ANSWERED | {"answer": float("nan")}]))),
    "an infinite answer": lambda tmp: str(rows_of(write(tmp, mine_yaml=QA.replace("csv", "parquet"), mine_parquet=
        [ANSWERED | {"answer": float("inf")}]))),
    "an answer of bytes": lambda tmp: str(rows_of(write(tmp, mine_yaml=QA.replace("csv", "parquet"), mine_parquet=
        [ANSWERED | {"answer": b"Ann"}]))),
    "an option that is an object": lambda tmp: str(rows_of(write(tmp, mine_yaml=SCQ.replace("csv", "json"), mine_json=
        json.dumps([{"context": "A b.", "question": "Why?", "options": ["a", {"text": "b"}], "answer": "a"}])))),
    # The description
    "unknown key": described(QA + "colums: {}"),
    "unknown column": described(QA + "columns: {contxt: a}"),
    "columns the other way round": described(QA + "columns: {passage: context}"),
    "unknown format": described(QA.replace("qa", "quiz")),
    "no format": described(QA.replace("format: qa\n", "")),
    "wrong relation": described(QA.replace("causal", "cause")),
    "no file": described("format: qa\nrelation: causal"),
    "a share above 1": described(QA + "test: 1.5"),
    "a share in per cent": described(QA + "test: 25%"),
    "shares of everything": described(QA + "test: 0.5\ndev: 0.5"),
    "a share of nothing": described(QA.replace("train", "dev") + "test: 0.5"),
    "one file twice": described(QA + "test: ./mine.csv"),
    "packed parquet": described(QA.replace("mine.csv", "mine.parquet.gz")),
    "a sheet": described(QA + "test: mine.xlsx"),
    "a missing file": described(QA + "test: mime.csv"),
    "broken YAML": described(QA + " columns: {a\n"),
    "a list": described("- a"),
    "a key twice": described(QA + "format: qa"),
    "unused labels": described(QA + "labels: {entailment: positive}"),
    "wrong labels": described(QA.replace("qa", "nli") + "labels: {entailment: true}"),
    "unused answer_as": described(QA + "answer_as: letter"),
    "unused relation": described(QA + "columns: {relation: r}"),
    "unused choices": described(f"{SCQ}columns: {{choices: wrong}}\n"),
    "a name with a blank": described(QA + "name: my data"),
    "the name of a dataset": described(QA + "name: ecare\n"),
    "the name of a section": described(QA + "name: refine\n"),
    "no description": lambda tmp: str(rows_of(tmp / "mine.yaml")),
    # Conversations
    "no context in tags": chat(""),
    "a context quoted twice": lambda tmp: str(rows_of(write(tmp, mine_yaml=CHAT + "columns: {context: doc}\n",
                                                            mine_jsonl=json.dumps(TWICE)))),
    "no context in a turn": chat("context_in: tool\n"),
    "no answer turn": chat("context_in: <doc>\n", SAID[:1]),
    "another column": chat("", name="conversations"),
    "unknown place": chat("context_in: doc\n"),
    "two places": chat("columns: {context: doc}\ncontext_in: <doc>\n"),
    "a question column": chat("columns: {question: q}\n"),
    "a prompt without parts": chat("prompt: Why?\n"),
    "a system without prompt": chat("system: Be brief.\n"),
    "no turns": chat("columns: {messages: [text]}\n", "Why?", "text"),
    "unknown loss": chat("loss: some\n"),
    "turns that end with the user": chat("context_in: none\ncolumns: {messages: messages, rejected: messages}\n",
                                         [*SAID, SAID[0]]),
    "a rejected answer of the user": lambda tmp: str(rows_of(write(
        tmp, mine_yaml=CHAT + "context_in: none\ncolumns: {rejected: worse}\n",
        mine_jsonl=json.dumps({"messages": SAID, "worse": SAID[:1]})))),
    # Questions
    "a column is missing": asked("q.csv", "context,ask\nA.,Q?\n"),
    "an unknown format": asked("q.jsonl", json.dumps(ASK | {"format": "mqc"})),
    "an unknown relation": asked("q.jsonl", json.dumps(ASK | {"relation": "x"})),
    "options are missing": asked("q.jsonl", json.dumps(ASK | {"format": "scq"})),
    "two questions of one id": asked("q.jsonl", (json.dumps(ASK | {"id": 1}) + "\n") * 2),
    "no questions": asked("q.jsonl", ""),
    "only a header": asked("q.csv", "context,question\n"),
    "another ending": asked("q.txt", "x"),
    "questions, no chats": asked("q.csv", "context,question\nA.,Q?\n", "train: a.csv\nformat: chat\n"),
    "no user turn": asked("q.jsonl", json.dumps({"messages": [{"role": "system", "content": "Hi."}, SAID[1]]})),
    "an empty user turn": asked("q.jsonl", json.dumps({"messages": [*SAID, {"role": "user", "content": " "}]})),
    "no turns to answer": asked("q.jsonl", json.dumps({"messages": []})),
    "two descriptions": asked("d.yaml", "train: a.csv\nformat: qa\n", "train: a.csv\nformat: qa\n"),
    "two formats": asked("q.csv", "context,question\nA.,Q?\n", "train: a.csv\nformat: qa\n", "qa"),
    "several files": asked("d.yaml", "train: a.csv\ndev: b.csv\nformat: qa\n"),
})  # fmt: skip
