"""Samples → token views of one answer, tokenised once; in a conversation it begins with the first trained turn."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from d2e_sft.config.recipe import View
from d2e_sft.data.chat_template import ChatEncoder, EndOfTurn, ending_ids, marks_turns, turn_tokens
from d2e_sft.data.prompts import PromptSet, candidate_responses, view_context
from d2e_sft.data.sample import EventSample
from d2e_sft.util.errors import UserError


@dataclass(frozen=True)
class EncodedSample:
    """The token ids of each view's prompt, and of the answer with the end of its turn.

    Attributes:
        content: Per answer token, False for the response form ("The answer is:") and the end of the turn. The token in
            which the answer begins belongs to the answer.
        trained: Per answer token, whether the loss is on it; empty for all.
        rejected, rejected_trained: The same for the rejected answer. It is empty without one, and None if not wanted.
    """

    prompts: dict[View, list[int]]
    answer: list[int]
    content: list[bool] = field(default_factory=list)
    trained: list[bool] = field(default_factory=list)
    rejected: list[int] | None = None
    rejected_trained: list[bool] = field(default_factory=list)

    @property
    def longest(self) -> int:
        """The number of tokens of the longest view, with the longer answer."""
        return max(len(prompt) for prompt in self.prompts.values()) + max(len(self.answer), len(self.rejected or ()))


class ViewEncoder:
    """Turns samples into token views, `original` first; with `prefers` it also encodes rejected answers.

    `ends` says what ends an answer that is trained on, see `ending_ids`.
    """

    prefers = False

    def __init__(
        self,
        tokenizer: Any,
        prompt_set: PromptSet,
        views: Sequence[View],
        *,
        encoder_decoder: bool = False,
        ends: EndOfTurn = "token",
    ) -> None:
        self.chat = ChatEncoder(tokenizer, encoder_decoder=encoder_decoder, as_text=prompt_set.as_text)
        self.tokenizer = tokenizer
        self.prompt_set = prompt_set
        self.views = tuple(views)
        self.end_of_turn = self.chat.end_of_turn
        self._ends: EndOfTurn = "token" if self.chat.plain else ends
        self._ending = ending_ids(tokenizer, self.end_of_turn, self._ends)

    def encode(self, sample: EventSample, *, max_length: int | None = None) -> EncodedSample:
        """Encode all views of a sample; `max_length` cuts the end of contexts, which may not be enough."""
        encoded = self._encode(sample, max_length)
        if not self.prefers:
            return encoded
        if sample.rejected_answers is None:
            return replace(encoded, rejected=[])
        rejected, trained = self._answer(sample.model_copy(update={"answers": sample.rejected_answers[1]}))
        longer = len(rejected) - len(encoded.answer)
        if max_length is not None and longer > 0:
            encoded = self._encode(sample, max_length - longer)
        return replace(encoded, rejected=rejected, rejected_trained=trained)

    def _answer(self, sample: EventSample) -> tuple[list[int], list[bool]]:
        """Return the answer's tokens and whether the loss is on each, empty for all."""
        if not self._by_turns(sample):
            return self.answer_ids(sample), []
        ids, trained = self._turns(sample, self.views[0], None)
        start = trained.index(True)
        return ids[start:], trained[start:]

    def _encode(self, sample: EventSample, max_length: int | None) -> EncodedSample:
        if self._by_turns(sample):
            return self._encode_turns(sample, max_length)
        answer = self.answer_ids(sample)
        budget = None if max_length is None else max_length - len(answer)
        prompts = {view: self.prompt_ids(sample, view, budget) for view in self.views}
        return EncodedSample(prompts, answer, content=self.answer_content(sample))

    def answer_ids(self, sample: EventSample) -> list[int]:
        """Return the response and the end of its turn."""
        text = self.prompt_set.response(sample)
        return [*self._tokens(text)[self._given(sample) :], *self._ending]

    def option_ids(self, sample: EventSample) -> tuple[list[list[int]], int]:
        """Return the response to each candidate, without an end, and how many tokens of their form all share.

        Without candidates they are the accepted answers.
        """
        texts = candidate_responses(self.prompt_set, sample)
        if not sample.candidates:
            accepted = (sample.model_copy(update={"answers": [answer]}) for answer in sample.answers)
            texts = [self.prompt_set.response(alternative) for alternative in accepted]
        form, *responses = self._tokens([self.prompt_set.marker(sample.format), *texts])
        if given := self._given(sample):
            return [tokens[given:] for tokens in responses], 0
        return responses, min(_common(form, tokens) for tokens in responses)

    def answer_content(self, sample: EventSample) -> list[bool]:
        """Return for each of the `answer_ids` whether it belongs to the answer, see `EncodedSample`."""
        text = self.prompt_set.response(sample)
        start, given = self.prompt_set.answer_start(sample), self._given(sample)
        ended = [False] * len(self._ending)
        if self.tokenizer.is_fast:
            encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
            return [*(end > start for _, end in encoded["offset_mapping"][given:]), *ended]
        # A slow tokenizer has no offsets: compare with the tokens of the response form on its own.
        ids, form = (self._tokens(part) for part in (text, text[:start]))
        fixed = _common(ids, form)
        return [*(i >= fixed for i in range(given, len(ids))), *ended]

    def prompt_ids(self, sample: EventSample, view: View, budget: int | None = None) -> list[int]:
        """Return the prompt of a view; contexts are cut to keep it within `budget` tokens."""
        ids = self._render(sample, view, None)
        if budget is None or len(ids) <= budget:
            return ids
        context = view_context(sample, view)
        keep = _largest(len(context), lambda n: len(self._render(sample, view, context[:n])) <= budget)
        whole_words = context[:keep].rsplit(maxsplit=1)
        # A cut inside a word moves to the end of the previous word, in scripts with blanks.
        if keep < len(context) and not context[keep].isspace() and len(whole_words) == 2:
            return self._render(sample, view, whole_words[0])
        return self._render(sample, view, context[:keep].rstrip())

    def all_prompt_ids(self, samples: Sequence[EventSample], view: View) -> list[list[int]]:
        """Return the `prompt_ids` of each sample without a budget; all at once, which is faster."""
        return self.chat.ids([self.prompt_set.messages(sample, view) for sample in samples])

    def _tokens(self, text: Any) -> Any:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def _given(self, sample: EventSample) -> int:
        """Return how many tokens of the response the prompt already ends in."""
        return len(self._tokens(self.prompt_set.given(sample.format)))

    def _render(self, sample: EventSample, view: View, context: str | None) -> list[int]:
        return self.chat.ids([self.prompt_set.messages(sample, view, context=context)])[0]

    def _by_turns(self, sample: EventSample) -> bool:
        """Whether the template must render the answer too: it marks answers, or there are several."""
        conversation = sample.conversation
        if conversation is None:
            return False
        has_several = conversation.loss == "all" and bool(conversation.earlier_answers)
        if has_several and self.chat.plain:
            raise UserError(
                f"sample {sample.id!r} of {sample.dataset!r}: its loss is on all assistant turns, but this model has "
                "no chat template to find them",
                remedy="write `loss: each` or `loss: last` in the data's YAML and build again",
            )
        return has_several or (not self.chat.plain and marks_turns(self.tokenizer))

    def _encode_turns(self, sample: EventSample, max_length: int | None) -> EncodedSample:
        turns = {view: self._turns(sample, view, max_length) for view in self.views}
        starts = {view: trained.index(True) for view, (_, trained) in turns.items()}
        answers = [ids[starts[view] :] for view, (ids, _) in turns.items()]
        if any(answer != answers[0] for answer in answers[1:]):
            raise UserError(
                f"sample {sample.id!r} of {sample.dataset!r}: the chat template of {self.tokenizer.name_or_path!r} "
                "changes the answer when the context is removed; expected the same tokens",
                remedy="use a chat template that renders each turn independently of the turns before it",
            )
        prompts = {view: ids[: starts[view]] for view, (ids, _) in turns.items()}
        marks = turns[self.views[0]][1][starts[self.views[0]] :]
        return EncodedSample(prompts, answers[0], content=marks, trained=marks)

    def _turns(self, sample: EventSample, view: View, max_length: int | None) -> tuple[list[int], list[bool]]:
        def encode(context: str | None) -> tuple[list[int], list[bool]]:
            messages = self.prompt_set.messages(sample, view, context=context)
            answered = [*messages, {"role": "assistant", "content": self.prompt_set.response(sample)}]
            only_last = sample.conversation is not None and sample.conversation.loss == "last"
            return turn_tokens(self.tokenizer, answered, only_last=only_last, end_of_turn=self._ends)

        ids, trained = encode(None)
        if max_length is None or len(ids) <= max_length:
            return ids, trained
        context = view_context(sample, view)
        keep = _largest(len(context), lambda n: len(encode(context[:n])[0]) <= max_length)
        return encode(context[:keep].rstrip())


def _largest(upper: int, fits: Callable[[int], bool]) -> int:
    """Return the largest n in [0, upper) that fits, or 0, by bisection: a shorter text hardly has more tokens."""
    low, high = 0, upper
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
