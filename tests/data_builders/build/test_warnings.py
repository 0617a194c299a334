"""What a build of own data warns of or refuses (test_warnings.yaml); without a warning the text is empty."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from data_builders.build.options import BuildOptions
from data_builders.build.run import build
from tests.data_builders.own_rows import HEAD, QA, crates, usual, write
from tests.messages import Call, messages_of

TESTED = QA + "test: test.csv\n"
SCQ = "test: mine.csv\nformat: scq\nrelation: none\n"
FAR = "nothing but a shelf that nobody had seen before"


def warned(text: str, spec: str = QA, test: str = "", **options: Any) -> Call:
    def call(tmp: Path) -> str:
        path = write(tmp, mine_yaml=spec, mine_csv=text, test_csv=test)
        return "\n".join(build(replace(BuildOptions([str(path)], tmp / "out"), **options)).warnings)

    return call


def chats(greetings: list[str]) -> Call:
    """Chats with the same question and answer, after one more turn of each speaker."""
    said = [
        ("user", "{}"),
        ("assistant", "Hi."),
        ("user", "<context>A lamp is on.</context> What is on?"),
        ("assistant", "lamp"),
    ]
    rows = [
        {"messages": [{"role": role, "content": text.format(hello)} for role, text in said]} for hello in greetings
    ]
    spec = "train: mine.jsonl\nformat: chat\nrelation: none\ncontext_in: <context>\n"

    def call(tmp: Path) -> str:
        path = write(tmp, mine_yaml=spec, mine_jsonl="\n".join(map(json.dumps, rows)))
        return "\n".join(build(BuildOptions([str(path)], tmp / "out")).warnings)

    return call


ONE, LABELS = HEAD + "The lamp is in Lyon.,Where is the lamp?,Lyon\n", HEAD + "A b.,A.,positive\nC d.,C.,negative\n"
QUOTING = ONE + "The lamp is on.,The lamp is on. What is on?,lamp\n"
NLI = QA.replace("qa", "nli")
SHED = ["the barn" if n % 8 == 7 else "the shed" for n in range(40)]
CHOICES = QA + "columns: {choices: choices}\n"
REFUSED = usual("the shed", 40) + "".join(f"Fan {n} is a fan.,Who made fan {n}?,Not given.\n" for n in range(15))
ALIKE = "id,context,question,options,answer\n" + "".join(
    f"{row.replace(',', f',Story {n}.,Which?,', 1)}\n"
    for n, row in enumerate(
        ["caf\u00e9,-5|5|10,-5", "cafe\u0301,yes|no,yes", "b\u200b,C|C#,C#", "b,the dog|a dog,a dog", "c,1|2,1",
         "d,caf\u00e9|caf\u200b\u00e9,caf\u00e9"]
    )
)  # fmt: skip

test_warning = messages_of(__file__, {
    "one of thirty contexts lacks its answer": warned(usual("the shed", 30).replace("in the shed", "in a hut", 1)),
    "two of thirty contexts lack their answers": warned(usual("the shed", 30).replace("in the shed", "in a hut", 2)),
    "no context has its answer": warned(usual("the shed", 8).replace(" is in the ", " is near the ").replace(
        ",the ", ",in the ")),
    "many have an answer that may be a refusal": warned(REFUSED),
    "few answers look like refusals": warned(
        usual("the shed", 40) + "A fan is a fan.,Who made it?,N/A\nA fan hums.,Who made it?,unknown\n"
        + "The year is unknown.,Which year?,unknown\n"),
    "rows refuse already": warned(REFUSED, QA + "refusal: not given\n", unanswerable=0.2),
    "a declared refusal": warned(REFUSED, QA + "refusal: not given\n"),
    "a declared refusal with another apostrophe": warned(
        REFUSED.replace("Not given", "I don’t know"), QA + 'refusal: "I don\'t know"\n'),
    "a declared refusal that no row has": warned(usual("the shed", 40), QA + "refusal: [not stated, unknown]\n"),
    "ids and options look alike": warned(ALIKE, SCQ),
    "questions contain their context": warned(QUOTING),
    "worded questions contain it": warned(QUOTING, 'train: mine.csv\nformat: chat\nprompt: "{context} {question}"\n'),
    "chats give their context twice": chats(["Hello.", "<context>A lamp is on.</context> Is a lamp on?"]),
    "chats differ in an earlier turn": chats(["Hello.", "Good day.", "Hello."]),
    "rows are repeated": warned(HEAD + crates(["the shed"]) * 3),
    "rows are repeated with other tags": warned(
        "s,h," + HEAD + "conflict,oil,The lamp.,What?,lamp\naligned,lamp,The lamp.,What?,lamp\n",
        QA + "columns: {subset: s, habit: h}\n"),
    "frequent answers are never swapped": warned(usual(FAR, 40), swap=1),
    "one answer replaces the usual one": warned(HEAD + crates(SHED), swap=0.5),
    "choices replace the usual one": warned(
        HEAD.replace("\n", ",choices\n") + crates(SHED, ",the attic|the yard|the loft"), CHOICES, swap=0.5),
    "too few aligned rows": warned(
        HEAD + crates(["the shed"] * 20 + ["the attic"]), TESTED, HEAD + crates(["the barn"] * 20), swap_test=1),
    "too few conflict rows": warned(HEAD + crates(SHED), TESTED, HEAD + crates(SHED), swap_test=0.25),
    "fewer unanswerable rows than wanted": warned(usual("the shed", 8) + "A lamp.,What is it?,lamp\n", unanswerable=1),
    "fewer distractors than wanted": warned(usual("the shed", 8), distractors=3),
    "a share of less than one row": warned(usual("the shed", 18), unanswerable=0.01),
    "one context alone": warned(ONE, unanswerable=1.0),
    "no distractor": warned(ONE, distractors=1),
    "labels": warned(LABELS, NLI, unanswerable=1.0),
    "no test rows": warned(ONE, unanswerable_test=1.0),
    "a refusal that no row has": warned(ONE, refusal="no"),
    "a blank refusal": warned(ONE, refusal=" ", unanswerable=0.5),
    "a refusal of labels": warned(LABELS, NLI + "refusal: neutral\n"),
    "no answer to swap": warned(HEAD + "It is near the shed.,Where is it?,in the shed\n", swap=1),
    "no test rows to swap": warned(ONE, swap_test=0.5),
})  # fmt: skip
