"""Chats: the two prompts of a turn, answers that are those of decoding, and the lines that a user types."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from d2e_sft.chat import PLAIN, ChatSession, open_session, talk
from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.data.chat_template import ChatEncoder, FormatPrompt
from d2e_sft.data.data_record import trained_wording
from d2e_sft.data.prompts import OWN, load_prompt_set
from d2e_sft.decoding import PromptPair
from d2e_sft.model.loading import LoadedModel
from d2e_sft.util.errors import UserError
from tests.d2e_sft.decoding.pairs import generated
from tests.d2e_sft.hub.runs import make_run, write_data_record
from tests.tiny import make_sample, save_tiny_model, tiny_model, tiny_tokenizer

QA = load_prompt_set("default").zero_shot["qa"]


def opened(alpha: float = 0.7, wording: FormatPrompt = PLAIN, kind: str = "llama") -> ChatSession:
    decoding = DecodingConfig(alpha=alpha, max_new_tokens=8)
    return ChatSession(LoadedModel(tiny_model(kind, seed=3), tiny_tokenizer()), decoding, wording)


def test_the_first_turn_of_a_run_is_the_prompt_of_training() -> None:
    sample = make_sample(4, context="A {question} of {context}.", question="Why {context_block}?")
    conversation = opened(wording=QA)
    for view, context in (("original", sample.context), ("imagined", "")):
        expected = load_prompt_set("default").messages(sample, view)  # type: ignore[arg-type]
        assert conversation.messages(sample.question, context=context) == expected


def test_the_context_stands_before_the_last_question_alone() -> None:
    conversation = opened()
    conversation.turns = [("One?", "First."), ("Two?", "Second.")]
    assert conversation.messages("Three?", context="It rained.") == [
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "First."},
        {"role": "user", "content": "Two?"},
        {"role": "assistant", "content": "Second."},
        {"role": "user", "content": "Context: It rained.\nThree?"},
    ]
    assert conversation.messages("Three?", context="", forgotten=2) == [{"role": "user", "content": "Three?"}]


def test_both_answers_are_those_of_decoding_and_the_debiased_one_is_remembered() -> None:
    session = opened(alpha=2.0)
    session.context = "Rain fell. The river rose."
    said = {"plain": "", "debiased": ""}
    for name, piece in session.ask("What rose?"):
        said[name] += piece
    model, tokenizer = tiny_model(seed=3), tiny_tokenizer()
    original, imagined = ChatEncoder(tokenizer).ids(
        [
            [{"role": "user", "content": "Context: Rain fell. The river rose.\nWhat rose?"}],
            [{"role": "user", "content": "What rose?"}],
        ]
    )
    pairs = [PromptPair(original, imagined, alpha=alpha) for alpha in (0.0, 2.0)]
    answers = generated(model, pairs, DecodingConfig(max_new_tokens=8), stop_ids=[1])
    expected = [text.strip() for text in tokenizer.batch_decode(answers)]
    assert [text.strip() for text in said.values()] == expected
    assert expected[0] != expected[1], "else this test would not tell them apart"
    assert session.turns == [("What rose?", expected[1])]


def test_the_oldest_turns_give_way_to_a_context_that_is_long() -> None:
    session = opened()
    session.turns = [("x" * 400, "y" * 300), ("Two?", "Second.")]
    session.context = "z" * 600
    list(session.ask("Three?"))
    assert session.forgotten == 1
    assert len(session.turns) == 3, "what was said is still shown"


def test_a_run_is_asked_and_decoded_as_its_recipe_says(tmp_path: Path) -> None:
    run = str(make_run(tmp_path, "llama", "eval.alpha=0.3"))
    conversation = open_session(run)
    assert conversation.wording == QA
    assert (conversation.decoding.alpha, conversation.decoding.max_new_tokens) == (0.3, 12)
    conversation = open_session(run, alpha=0.9, max_new_tokens=5, wording="none", system="Be brief.", dtype="bfloat16")
    assert conversation.wording == PLAIN.model_copy(update={"system": "Be brief."})
    worded = {
        "neutral": "neutral",
        "neutral, the rows' own": "neutral",
        "default, neutral": "default",
        None: "default",
    }
    for wording, said in worded.items():
        write_data_record(Path(run), wording)
        system = load_prompt_set(said).zero_shot["qa"].system
        assert open_session(run).wording.system == system, "as its rows were worded"
        assert trained_wording(run, "mine.yaml") == "mine.yaml"
        (Path(run) / "checkpoint-4").mkdir(exist_ok=True)
        (Path(run) / "checkpoint-4" / "recipe.yaml").write_bytes((Path(run) / "recipe.yaml").read_bytes())
        assert trained_wording(f"{run}/checkpoint-4", "default") == said
    assert (conversation.decoding.alpha, conversation.decoding.max_new_tokens) == (0.9, 5)
    assert str(conversation.loaded.model.dtype) == "torch.bfloat16"


def test_a_run_of_conversations_is_asked_in_your_own_words(tmp_path: Path) -> None:
    run = make_run(tmp_path, "llama")
    write_data_record(run, OWN)
    assert open_session(str(run)).wording == PLAIN
    assert open_session(str(run), system="Mine.").wording.system == "Mine."
    assert open_session(str(run), wording="qa").wording == QA


def test_another_model_gets_questions_as_they_are(tmp_path: Path) -> None:
    model = str(save_tiny_model(tmp_path / "model"))
    conversation = open_session(model)
    assert conversation.wording == PLAIN
    assert conversation.decoding.alpha == 0.5
    assert open_session(model, wording="qa").wording.system == QA.system
    with pytest.raises(UserError, match="--prompt-set default: has no effect on questions that are sent as they are"):
        open_session(model, prompt_set="default")


@pytest.fixture
def session() -> ChatSession:
    return opened(alpha=0.5)


def chatted(
    session: ChatSession, *lines: str | type[BaseException], interactive: bool = False
) -> tuple[str, str, int]:
    """What was said, what was complained about, and how many lines failed; an exception among the lines is raised."""
    said: list[str] = []
    complaints: list[str] = []
    left = iter(lines)

    def read() -> str:
        line = next(left, EOFError)
        if isinstance(line, str):
            return line
        raise line

    failed = talk(session, read=read, write=said.append, write_error=complaints.append, interactive=interactive)
    return "".join(said), "\n".join(complaints), failed


def test_a_context_is_set_shown_replaced_and_removed(session: ChatSession, tmp_path: Path) -> None:
    (tmp_path / "story.txt").write_text("\ufeffThe dam broke.\n")
    said, _, failed = chatted(
        session,
        "/context",
        "/context It rained.",
        "/context",
        f"/file {tmp_path / 'story.txt'}",
        "/context",
        "/paste", "First.", "", "/context of the storm", "/end",
        "/context",
        "/drop",
        "/context",
    )  # fmt: skip
    assert failed == 0
    assert said.splitlines() == [
        "(no context)",
        "(context set: 10 characters)",
        "It rained.",
        "(context replaced: 14 characters)",
        "The dam broke.",
        "(context replaced: 29 characters)",
        "First.", "", "/context of the storm",
        "(no context)",
        "(no context)",
    ]  # fmt: skip


def test_a_question_gets_both_answers_and_the_next_turn_knows_it(session: ChatSession) -> None:
    said, _, _ = chatted(session, "/context It rained.", "Why?", "//etc?", "/turns", "/clear", "/turns")
    lines = said.splitlines()
    assert lines[1].startswith("plain     ")
    assert lines[2].startswith("debiased  ")
    (first, reply), (second, other) = [line.split("\n", 1) for line in said.split("> ")[1:]]
    assert (first, second) == ("Why?", "/etc?")
    assert reply.strip() == lines[2].removeprefix("debiased  ").strip()
    assert other.splitlines()[-1] == "(no turns yet)"
    assert session.turns == []


def test_without_a_context_or_with_an_alpha_of_0_the_one_answer_says_why(session: ChatSession) -> None:
    said, _, _ = chatted(session, "Why?", "/context It rained.", "/alpha 0", "Why?")
    assert "debiased" not in said
    assert "(no context, so nothing to debias: set one with /context TEXT)" in said
    assert "(decoded plainly)" in said
    assert "(decoded plainly: α is 0)" in said


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["/contxt A."], "Did you mean '/context'?"),
        (["/alpha much"], "/alpha much: expected a number, 0 or more"),
        (["/alpha -1"], "alpha=-1.0: not a debias ratio"),
        (["/alpha"], "expected a number"),
        (["/file nowhere.txt"], "nowhere.txt: does not exist"),
        (["/paste", "half a text"], "/paste: the input ended before a line with /end"),
        (["/paste", "/end"], "/paste: no text before /end"),
        (["half \udcff"], "not UTF-8"),
        (["/paste", "half \udcff", "/end"], "not UTF-8"),
        (["x" * 2000], "expected at most 1,016, as the model has 1,024"),
    ],
)
def test_a_line_that_fails_is_named_and_the_others_go_on(session: ChatSession, lines: list[str], message: str) -> None:
    said, complaint, failed = chatted(session, *lines, "/context It rained.")
    assert message in complaint
    assert failed == 1
    assert session.turns == []
    assert "(context set" in said or lines == ["/paste", "half a text"]


def test_ctrl_c_ends_an_answer_and_not_the_chat(session: ChatSession, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = ChatSession.ask, 0

    def ask(self: ChatSession, question: str) -> Iterator[tuple[str, str]]:
        nonlocal calls
        calls += 1
        for piece in real(self, question):
            yield piece
            if calls == 1:
                raise KeyboardInterrupt

    monkeypatch.setattr(ChatSession, "ask", ask)
    said, _, failed = chatted(session, "Why?", KeyboardInterrupt, "And then?", interactive=True)
    assert said.count("(stopped, and not remembered; /quit or ctrl-D ends the chat)") == 2
    assert [question for question, _ in session.turns] == ["And then?"]
    assert failed == 0
    calls = 0
    with pytest.raises(KeyboardInterrupt):  # from a pipe it ends the command
        chatted(session, "Why?")


def test_quit_ends_before_the_lines_that_follow(session: ChatSession) -> None:
    said, _, _ = chatted(session, "/help", "/quit", "Why?")
    assert "/context [TEXT]" in said
    assert session.turns == []
