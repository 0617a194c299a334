"""A model's habits, from scripted answers to questions that are asked without their contexts."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import islice
from math import log
from pathlib import Path
from typing import Any

import pytest

from d2e_sft.data.built import TAG
from d2e_sft.data.sample import EventSample
from d2e_sft.decoding.pairs import OptionScore, PromptPair
from d2e_sft.util.errors import UserError
from eval.run import passes
from eval.run.engines.engine import EngineReply
from eval.run.engines.in_process import InProcessEngine
from eval.run.habits import ClosedBook, Habit, TagRule
from eval.run.options import EvalOptions
from tests.tiny import make_sample, save_tiny_model

ZERO_SHOT = TagRule(shots=0)


@dataclass
class Scripted:
    """Stands in for an engine: replies by question and seed; `certainty` is the probability of an option's tokens."""

    replies: Mapping[str, str | Sequence[str]]
    certainty: Mapping[str, float] = field(default_factory=dict)
    asked: list[list[dict[str, str]]] = field(default_factory=list)
    name = "scripted"
    in_turn = False

    def __post_init__(self) -> None:
        self.counts: dict[str, int] = {}

    def prepare(self, task: Any) -> list[PromptPair[Any]]:
        return [PromptPair(chat.imagined, options=chat.options) for chat in task.conversations]

    def generate(self, pairs: Any, decoding: Any) -> Iterator[EngineReply]:
        for place, pair in enumerate(pairs):
            self.asked.append(pair.original)
            reply = self.replies[question_of(pair.original)]
            yield EngineReply(place, reply if isinstance(reply, str) else reply[decoding.seed])

    def score(self, pairs: Any, decoding: Any) -> Iterator[EngineReply]:
        for place, pair in enumerate(pairs):
            self.asked.append(pair.original)
            yield EngineReply(place, [OptionScore(2 * log(self.certainty[option]), 2) for option in pair.options])

    def environment(self) -> dict[str, Any]:
        return {}


def question_of(messages: Sequence[Mapping[str, str]]) -> str:
    text = messages[-1]["content"]
    return text[text.index("Question: ") + 10 :].split("\n")[0]


Script = Callable[..., Scripted]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Script:
    monkeypatch.setenv("D2E_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(passes, "identity_of", lambda model, config: f"weights of {model}")

    def install(*arguments: Any) -> Scripted:
        engine = Scripted(*arguments)
        monkeypatch.setattr(passes, "make_engine", lambda *_: engine)
        return engine

    return install


def question(number: int = 0, *answers: str, **changes: Any) -> EventSample:
    return make_sample(number, relation="none", question=f"Who came {number}?", answers=answers or ["Ann"], **changes)


def habits(samples: Sequence[EventSample], rule: TagRule = ZERO_SHOT, model: str = "m") -> list[Habit]:
    return ClosedBook(model, EvalOptions(), rule).habits(samples)


@pytest.mark.parametrize(
    ("gold", "said", "certainty", "subset", "habit"),
    [
        (["Ann"], "The answer is: Ann", 0.5, "aligned", ["Ann"]),
        (["Ann Lee", "Ann"], "The answer is: the ann", 0.9, "aligned", ["Ann Lee", "Ann"]),
        (["Ann"], "The answer is: Ann", 0.49, "unknown", ["Ann"]),
        (["Ann"], "The answer is: Bo", 0.5, "conflict", ["Bo"]),
        (["Ann"], "The answer is: Bo", 0.4, "unknown", ["Bo"]),
        (["Ann"], "The answer is: It was Ann", 0.9, "aligned", ["Ann"]),  # the answer in a sentence
        (["Ann Lee"], "The answer is: Lee", 0.9, "unknown", ["Lee"]),  # a part need not contradict the whole
        (["5"], "The answer is: -5", 0.9, "unknown", ["-5"]),  # another answer, which exact match cannot tell
        (["5"], "The answer is: -5 men", 0.9, "unknown", ["-5 men"]),
        (["-5"], "The answer is: -5", 0.9, "aligned", ["-5"]),
        (["Ann"], "The answer is: Annabel", 0.9, "conflict", ["Annabel"]),
        (["Ann"], "The answer is: The answer is: The answer is:", 0.9, "unknown", []),
        (["Ann"], "", 0.9, "unknown", []),
        (["Ann"], "The answer is: Who came was the one who came, of course", 0.9, "unknown", []),  # too long
    ],
)
def test_a_sure_answer_is_aligned_or_conflict_and_others_are_unknown(
    script: Script, gold: list[str], said: str, certainty: float, subset: str, habit: list[str]
) -> None:
    answer = said.removeprefix("The answer is:").strip()
    script({"Who came 0?": said}, {answer: certainty})
    [tagged] = ClosedBook("m", EvalOptions(), ZERO_SHOT).tagged([question(0, *gold, meta={"page": 3})])
    assert (tagged.subset, tagged.habit) == (subset, habit)
    assert tagged.meta["page"] == 3
    assert tagged.meta[TAG]["probability"] == (certainty if habit else None)


@pytest.mark.parametrize(
    ("certainties", "gold", "confidence", "subset"),
    [
        # Two tokens each: 0.81, 0.01 and 0.01 of 0.83 in all; a third is chance.
        ((0.9, 0.1, 0.1), "a", (0.81 / 0.83 - 1 / 3) * 1.5, "aligned"),
        ((0.9, 0.1, 0.1), "b", (0.81 / 0.83 - 1 / 3) * 1.5, "conflict"),
        ((0.5, 0.4, 0.4), "a", (0.25 / 0.57 - 1 / 3) * 1.5, "unknown"),
        ((0.5, 0.5, 0.5), "a", 0.0, "unknown"),
    ],
)
def test_options_are_scored_and_chance_is_no_confidence(
    script: Script, certainties: Sequence[float], gold: str, confidence: float, subset: str
) -> None:
    script({}, dict(zip("abc", certainties, strict=True)))
    [found] = habits([question(0, gold, format="scq", options=["a", "b", "c"])])
    assert found == Habit(["a"], pytest.approx(confidence, abs=1e-4), subset)


def test_agreement_is_the_share_of_the_most_frequent_draw(script: Script) -> None:
    replies = ["The answer is: Bo", "The answer is: Ann", "the bo", "nothing at all", "The answer is: Bo."]
    script({"Who came 0?": replies, "Who came 1?": [""] * 5})
    rule = TagRule("agreement", 0.6, samples=5, shots=0)
    assert habits([question(0), question(1)], rule) == [Habit(["Bo"], 0.6, "conflict"), Habit([], None, "unknown")]


def test_draws_of_options_that_differ_in_a_sign_are_different_answers(script: Script) -> None:
    script({"Who came 0?": ["(A) -5", "(B) 5", "(B) 5", "+5", "+5"]})
    row = question(0, "-5", format="scq", options=["-5", "5", "10"])
    assert habits([row], TagRule("agreement", 0.4, samples=5, shots=0)) == [Habit(["5"], 0.4, "conflict")]


def test_prompts_show_other_training_rows_without_contexts_and_never_the_row_itself(script: Script) -> None:
    rows = [question(n, f"A{n}", split="train" if n < 4 else "test", context=f"Secret {n}.") for n in range(6)]
    engine = script({row.question: "" for row in rows})
    habits(rows, TagRule(shots=2))
    assert len(engine.asked) == 6
    shown = [messages[1:-1] for messages in engine.asked]
    known = {row.question: row for row in rows}
    for messages, others in zip(engine.asked, shown, strict=True):
        assert "Secret" not in str(messages)
        asked = [question_of([turn]) for turn in others[::2]]
        assert len(set(asked)) == 2
        assert question_of(messages) not in asked
        assert all(known[one].split == "train" for one in asked)
        assert [turn["content"] for turn in others[1::2]] == [
            f"The answer is: {known[one].answers[0]}" for one in asked
        ]
    assert len({str(others) for others in shown}) <= 3, "prompts share their beginning"


def test_no_question_is_asked_twice(script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [question(n, context=f"In {n}.") for n in range(3)]
    engine = script({row.question: "The answer is: Bo" for row in (*rows, question(3))}, {"Bo": 0.7})
    first = habits(rows)
    twin = rows[0].model_copy(update={"id": "twin", "context": "Another one."})
    engine.asked.clear()
    assert habits([rows[2], twin, *rows]) == [first[2], first[0], *first]
    assert not engine.asked
    assert "asked before: 5 of 5 questions" in capsys.readouterr().err
    habits([*rows, question(3)])
    assert [question_of(one) for one in engine.asked] == ["Who came 3?"] * 2  # its answer, and how sure it is
    engine.asked.clear()
    habits(rows, model="another")
    assert len(engine.asked) == 6
    for file in (tmp_path / "cache" / "closed-book").rglob("*.jsonl"):
        file.write_text(file.read_text().replace("Bo", "Al"))
    with pytest.raises(UserError, match="kept answers are damaged") as error:
        habits(rows)
    assert "to ask again" in str(error.value.remedy)


def test_another_response_form_is_scored_anew(script: Script, tmp_path: Path) -> None:
    row = question(format="scq", options=["Ann", "Bo"])
    bundled = (files("d2e_sft.data") / "prompt_sets" / "neutral.yaml").read_text(encoding="utf-8")
    for number, response in enumerate(("The correct option is: {answer}", "Answer: {answer}")):
        (tmp_path / f"{number}.yaml").write_text(bundled.replace('"The correct option is: {answer}"', f'"{response}"'))
        engine = script({}, {"Ann": 0.7, "Bo": 0.2})
        options = EvalOptions(prompt_set=str(tmp_path / f"{number}.yaml"))
        ClosedBook("m", options, ZERO_SHOT).habits([row])
        assert len(engine.asked) == 1


def test_an_interrupted_call_resumes(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [question(n) for n in range(4)]
    engine = script({row.question: "The answer is: Bo" for row in rows}, {"Bo": 0.7})
    whole = type(engine).generate

    def stops(pairs: Any, decoding: Any) -> Iterator[EngineReply]:
        yield from whole(engine, pairs[:3], decoding)
        raise UserError("the machine was switched off")

    with monkeypatch.context() as patch:
        patch.setattr(engine, "generate", stops)
        with pytest.raises(UserError, match="3 of 4 answers are kept"):
            habits(rows)
    engine.asked.clear()
    assert [one.answers for one in habits(rows)] == [["Bo"]] * 4
    assert [question_of(one) for one in engine.asked[:-4]] == ["Who came 3?"]


def test_draws_after_an_interruption_are_those_of_an_uninterrupted_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, rows = str(save_tiny_model(tmp_path / "model", seed=3)), [question(n) for n in range(6)]
    whole = InProcessEngine.generate

    def stops(*arguments: Any) -> Iterator[EngineReply]:
        yield from islice((reply for reply in whole(*arguments) if reply.answer is not None), 3)
        raise UserError("the machine was switched off")

    def drawn(cache: str) -> list[str]:
        monkeypatch.setenv("D2E_CACHE", str(tmp_path / cache))
        ClosedBook(model, EvalOptions(max_new_tokens=6), TagRule("agreement", samples=1, shots=0)).habits(rows)
        [file] = (tmp_path / cache / "closed-book").rglob("*.jsonl")
        return [json.loads(line)["output"] for line in file.read_text("utf-8").splitlines()]

    with monkeypatch.context() as patch:
        patch.setattr(InProcessEngine, "generate", stops)
        with pytest.raises(UserError, match="3 of 6 answers are kept"):
            drawn("interrupted")
    assert drawn("interrupted") == drawn("uninterrupted")


def test_an_endpoint_is_asked_by_agreement(script: Script) -> None:
    script({"Who came 0?": ["The answer is: Bo"] * 8})
    options = EvalOptions(engine="openai")
    assert ClosedBook("m", options, ZERO_SHOT).habits([question()]) == [Habit(["Bo"], 1.0, "conflict")]
    with pytest.raises(UserError, match="expected agreement"):
        ClosedBook("m", options, TagRule("probability"))
