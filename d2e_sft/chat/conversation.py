"""A conversation about a context: its two prompts, and the answers to the next turn.

The context precedes the user's last turn, as in a chat request to `d2e serve`; the imagined prompt is the same
conversation without it. So the context can be replaced between turns, and both prompts hold the turns so far.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from d2e_sft.config.decoding import DecodingConfig, given_decoder
from d2e_sft.config.recipe import EvalSection, ModelSection, Recipe, recipe_of, warn_if_trained_on_texts
from d2e_sft.data.chat_template import ChatEncoder, Messages
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.decoding import PromptPair, generate, stop_token_ids
from d2e_sft.decoding.pairs import TokenPair
from d2e_sft.model.loading import LoadedModel, check_answer_fits, load_to_decode, position_limit
from d2e_sft.train.data_record import trained_wording
from d2e_sft.util.errors import UserError

_NAME = "the conversation"  # in messages
OnText = Callable[[str, str], object]  # gets "plain" or "debiased", and each new piece of that answer


@dataclass(frozen=True)
class Wording:
    """The texts around a user's turns.

    Attributes:
        system: the system message; empty: none.
        context: the context line, with `{context}`.
        user: a turn, with `{context_block}` and `{question}`.
    """

    system: str = ""
    context: str = "Context: {context}\n"
    user: str = "{context_block}{question}"

    def turn(self, question: str, context: str = "") -> str:
        """One turn of the user; braces in the question or the context are kept as they are."""
        block = self.context.replace("{context}", context) if context.strip() else ""
        before, placed, after = self.user.partition("{context_block}")
        parts = [before, block if placed else "", after]
        return "".join(part if part is block else part.replace("{question}", question) for part in parts)


@dataclass(frozen=True)
class Reply:
    """The answers to one turn.

    Attributes:
        plain: with the context, decoded plainly.
        debiased: by the conversation's decoder; None if there is no context, or the decoder is plain.
        forgotten: number of old turns that were left out.
    """

    plain: str
    debiased: str | None = None
    forgotten: int = 0


@dataclass
class Conversation:
    """A model, a context and the turns so far.

    Attributes:
        decoding: Settings of the debiased answer; they may be replaced between turns.
        context: Context of the next turn; if empty, answers are plain.
        turns: Question and answer of each turn, as the user and the model wrote them.
    """

    loaded: LoadedModel
    decoding: DecodingConfig
    wording: Wording = Wording()
    context: str = ""
    turns: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        config = self.loaded.model.config
        self._encoder = ChatEncoder(self.loaded.tokenizer, encoder_decoder=config.is_encoder_decoder)
        # The answer of an encoder-decoder has positions of its own.
        self._limit = None if config.is_encoder_decoder else position_limit(config)

    def messages(self, question: str, *, context: str, forgotten: int = 0) -> Messages:
        """The conversation up to the answer, without its oldest turns."""
        messages = [{"role": "system", "content": self.wording.system}] if self.wording.system else []
        for asked, answer in self.turns[forgotten:]:
            messages.append({"role": "user", "content": self.wording.turn(asked)})
            messages.append({"role": "assistant", "content": answer})
        return [*messages, {"role": "user", "content": self.wording.turn(question, context)}]

    def ask(self, question: str, on_text: OnText = lambda name, text: None) -> Reply:
        """Answer a turn and remember it, with the debiased answer if there is one.

        Raises:
            UserError: context and question exceed the model's context even without earlier turns. The turn is then not
                remembered, nor is it if an answer is interrupted.
        """
        forgotten, original = self._fitted(question)
        [imagined] = self._encoder.ids([self.messages(question, context="", forgotten=forgotten)])
        plainly = replace(self.decoding, decoder="plain", plausibility=0.0)
        plain = self._decode(PromptPair(original, name=_NAME), plainly, "plain", on_text)
        debiased = None
        if self.context.strip() and self.decoding.needs_imagined:
            debiased = self._decode(PromptPair(original, imagined, name=_NAME), self.decoding, "debiased", on_text)
        self.turns.append((question, plain if debiased is None else debiased))
        return Reply(plain, debiased, forgotten)

    def _fitted(self, question: str) -> tuple[int, list[int]]:
        """How many old turns to leave out so that the rest fits, and the original prompt's tokens."""
        check_answer_fits(self._limit, self.decoding.max_new_tokens)
        for forgotten in range(len(self.turns) + 1):
            [prompt] = self._encoder.ids([self.messages(question, context=self.context, forgotten=forgotten)])
            if self._limit is None or len(prompt) + self.decoding.max_new_tokens <= self._limit:
                return forgotten, prompt
        room = (self._limit or 0) - self.decoding.max_new_tokens
        raise UserError(
            f"context and question have {len(prompt):,} tokens; expected at most {room:,}, as the model has "
            f"{self._limit:,} and an answer may have {self.decoding.max_new_tokens:,}",
            remedy="shorten the context, or lower --max-new-tokens",
        )

    def _decode(self, pair: TokenPair, decoding: DecodingConfig, name: str, on_text: OnText) -> str:
        """Decode an answer and report its text piece by piece."""
        model, reported, text = self.loaded.model, "", ""
        stop_ids = stop_token_ids(model, self._encoder.end_of_turn)
        for output in generate(model, self.loaded.tokenizer, [pair], decoding, stop_ids=stop_ids):
            text = output.text.lstrip()
            if output.ended:
                text = text.rstrip()
            # An incomplete character waits for the next token.
            if text.startswith(reported) and text != reported and (output.ended or not text.endswith("\ufffd")):
                on_text(name, text[len(reported) :])
                reported = text
        return text


@dataclass(frozen=True)
class ChatOptions:
    """Options of a call; None: as in the run's recipe, else the default for a model without a run.

    Attributes:
        alpha, decoder: as for `d2e eval`; α is 0.5 for a model without a run.
        max_new_tokens: longest answer.
        wording: `qa` words questions as the prompt set does, `none` leaves them as they are; None: `qa` for a run.
        system: system message that replaces the prompt set's.
        dtype: of the weights; `auto` is bfloat16 if this machine computes it fast.
    """

    alpha: float | None = None
    decoder: str | None = None
    max_new_tokens: int | None = None
    wording: Literal["qa", "none"] | None = None
    prompt_set: str | None = None
    system: str | None = None
    dtype: str | None = None


def open_conversation(model: str, options: ChatOptions) -> Conversation:
    """Load a model for a conversation that has no context yet.

    Raises:
        UserError: no such model, prompt set or decoder, conflicting options, or a model without a chat template.
    """
    recipe = recipe_of(model)
    warn_if_trained_on_texts(recipe)
    section, own = (ModelSection(), EvalSection()) if recipe is None else (recipe.model, recipe.eval)
    default = DecodingConfig() if recipe is None else recipe.decoding
    decoding = DecodingConfig(
        **given_decoder(options.decoder, options.alpha, default.alpha),
        max_new_tokens=options.max_new_tokens or own.max_new_tokens,
    )
    wording = _wording(model, recipe, options)
    return Conversation(load_to_decode(model, section, options.dtype), decoding, wording)


def _wording(model: str, recipe: Recipe | None, options: ChatOptions) -> Wording:
    how = options.wording or ("none" if recipe is None else "qa")
    if how == "none":
        if options.prompt_set is not None:
            raise UserError(
                f"--prompt-set {options.prompt_set}: has no effect on questions that are sent as they are",
                remedy="drop it, or add --wording qa",
            )
        return Wording(system=options.system or "")
    named = "default" if recipe is None else recipe.data.prompt_set
    prompt_set = load_prompt_set(options.prompt_set or trained_wording(model, named))
    if "qa" not in prompt_set.zero_shot:
        if options.wording is None:
            return Wording(system=options.system or "")
        raise UserError(f"--wording qa: prompt set {prompt_set.name!r} has no prompt for qa", "use --wording none")
    prompt = prompt_set.zero_shot["qa"]
    return Wording(prompt.system if options.system is None else options.system, prompt.context, prompt.user)
