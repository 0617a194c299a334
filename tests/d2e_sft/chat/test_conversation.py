"""The two prompts of a conversation, and answers that are those of plain and of debiased decoding."""

from __future__ import annotations

from pathlib import Path

import pytest

from d2e_sft.chat.conversation import ChatOptions, Conversation, Wording, open_conversation
from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.data.chat_template import ChatEncoder
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.decoding import PromptPair
from d2e_sft.model.loading import LoadedModel
from d2e_sft.train.data_record import trained_wording
from d2e_sft.util.errors import UserError
from tests.d2e_sft.decoding.pairs import generated
from tests.d2e_sft.hub.runs import make_run, write_data_record
from tests.tiny import make_sample, save_tiny_model, tiny_model, tiny_tokenizer

QA = load_prompt_set("default").zero_shot["qa"]


def opened(alpha: float = 0.7, wording: Wording | None = None, kind: str = "llama") -> Conversation:
    decoding = DecodingConfig(alpha=alpha, max_new_tokens=8)
    return Conversation(LoadedModel(tiny_model(kind, seed=3), tiny_tokenizer()), decoding, wording or Wording())


def test_the_first_turn_of_a_run_is_the_prompt_of_training() -> None:
    sample = make_sample(4, context="A {question} of {context}.", question="Why {context_block}?")
    conversation = opened(wording=Wording(QA.system, QA.context, QA.user))
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
    conversation = opened(alpha=2.0)
    conversation.context = "Rain fell. The river rose."
    pieces: dict[str, str] = {"plain": "", "debiased": ""}

    reply = conversation.ask("What rose?", lambda name, text: pieces.update({name: pieces[name] + text}))
    model, tokenizer = tiny_model(seed=3), tiny_tokenizer()
    original, imagined = ChatEncoder(tokenizer).ids(
        [
            [{"role": "user", "content": "Context: Rain fell. The river rose.\nWhat rose?"}],
            [{"role": "user", "content": "What rose?"}],
        ]
    )
    pairs = [PromptPair(original, imagined, alpha=alpha) for alpha in (0.0, 2.0)]
    expected = generated(model, pairs, DecodingConfig(max_new_tokens=8), stop_ids=[1])
    assert [reply.plain, reply.debiased] == [text.strip() for text in tokenizer.batch_decode(expected)]
    assert reply.plain != reply.debiased, "else this test would not tell them apart"
    assert pieces["plain"].strip() == reply.plain
    assert pieces["debiased"].strip() == reply.debiased
    assert conversation.turns == [("What rose?", reply.debiased)]


def test_the_oldest_turns_give_way_to_a_context_that_is_long() -> None:
    conversation = opened()
    conversation.turns = [("x" * 400, "y" * 300), ("Two?", "Second.")]
    conversation.context = "z" * 600
    assert conversation.ask("Three?").forgotten == 1
    assert len(conversation.turns) == 3, "what was said is still shown"


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_nothing_to_contrast_with_is_one_plain_answer(kind: str) -> None:
    conversation = opened(kind=kind)
    assert conversation.ask("Why?").debiased is None
    conversation.context = "  \n"
    assert conversation.ask("Why?").debiased is None
    conversation.context = "It rained."
    conversation.decoding = DecodingConfig(alpha=0.0, max_new_tokens=4)
    assert conversation.ask("Why?").debiased is None


def test_a_run_is_asked_and_decoded_as_its_recipe_says(tmp_path: Path) -> None:
    run = str(make_run(tmp_path, "llama", "eval.alpha=0.3"))
    conversation = open_conversation(run, ChatOptions())
    assert conversation.wording == Wording(QA.system, QA.context, QA.user)
    assert (conversation.decoding.alpha, conversation.decoding.max_new_tokens) == (0.3, 12)
    given = ChatOptions(alpha=0.9, max_new_tokens=5, wording="none", system="Be brief.", dtype="bfloat16")
    conversation = open_conversation(run, given)
    assert conversation.wording == Wording(system="Be brief.")
    worded = {
        "neutral": "neutral",
        "neutral, the rows' own": "neutral",
        "default, neutral": "default",
        None: "default",
    }
    for wording, said in worded.items():
        write_data_record(Path(run), wording)
        system = load_prompt_set(said).zero_shot["qa"].system
        assert open_conversation(run, ChatOptions()).wording.system == system, "as its rows were worded"
        assert trained_wording(run, "mine.yaml") == "mine.yaml"
        (Path(run) / "checkpoint-4").mkdir(exist_ok=True)
        (Path(run) / "checkpoint-4" / "recipe.yaml").write_bytes((Path(run) / "recipe.yaml").read_bytes())
        assert trained_wording(f"{run}/checkpoint-4", "default") == said
    assert (conversation.decoding.alpha, conversation.decoding.max_new_tokens) == (0.9, 5)
    assert str(conversation.loaded.model.dtype) == "torch.bfloat16"


def test_another_model_gets_questions_as_they_are(tmp_path: Path) -> None:
    model = str(save_tiny_model(tmp_path / "model"))
    conversation = open_conversation(model, ChatOptions())
    assert conversation.wording == Wording()
    assert conversation.decoding.alpha == 0.5
    assert open_conversation(model, ChatOptions(wording="qa")).wording.system == QA.system
    with pytest.raises(UserError, match="--prompt-set default: has no effect on questions that are sent as they are"):
        open_conversation(model, ChatOptions(prompt_set="default"))
