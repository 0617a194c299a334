"""Prompts whose options are scored by their log-probability: nothing is generated."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from d2e_sft.data.views import ViewEncoder
from d2e_sft.util.errors import UserError
from eval.run.engines.engine import Task, TokenPrompts
from eval.run.engines.sample_task import SampleTask
from eval.run.journal_files import Answer

if TYPE_CHECKING:  # torch comes with it, which scoring alone does without
    from d2e_sft.decoding import OptionScore

# Of a prompt: its options as token ids, and how many first tokens of all of them are given and not scored.
OptionIds = tuple[list[list[int]], int]


@dataclass(frozen=True, kw_only=True)
class OptionTask(Task):
    """A pass over prompts that have candidates; `max_new_tokens` plays no part.

    Mixed with a task that has the prompts.
    """

    @property
    def title(self) -> str:
        return f"options, {super().title}"

    @abstractmethod
    def candidates(self, place: int) -> Sequence[str]:
        """The options of a prompt."""

    @abstractmethod
    def option_ids(self, tokenizer: Any, *, encoder_decoder: bool) -> list[OptionIds]:
        """The options of all prompts as token ids."""

    def tokens(self, tokenizer: Any, *, encoder_decoder: bool, limit: int | None) -> TokenPrompts:
        """The prompts as token ids, and the responses to score.

        Args:
            limit: positions of the model, which hold the longest response, too.

        Raises:
            UserError: an option has no token of its own, or as `Task.tokens`.
        """
        encoded = self.option_ids(tokenizer, encoder_decoder=encoder_decoder)
        for place, (responses, common) in enumerate(encoded):
            own = tokenizer.batch_decode([tokens[common:] for tokens in responses])
            for option, text in zip(self.candidates(place), own, strict=True):
                if not text.strip():
                    raise UserError(
                        f"{self.label(place)}: the tokenizer of {tokenizer.name_or_path!r} makes no token of option "
                        f"{option!r}, so there is nothing to score; expected at least one",
                        remedy="mend the row or leave it out, or generate the answer: --answer generate",
                    )
        longest = max(len(tokens) for responses, _ in encoded for tokens in responses)
        sized = replace(self, decoding=replace(self.decoding, max_new_tokens=longest))
        prompts = super(OptionTask, sized).tokens(tokenizer, encoder_decoder=encoder_decoder, limit=limit)
        return replace(
            prompts, options=[responses for responses, _ in encoded], given=[common for _, common in encoded]
        )

    def answers(
        self, places: Sequence[int], scores: Sequence[Sequence[OptionScore]], truncated: AbstractSet[int]
    ) -> list[Answer]:
        """The scores of the samples at these places, for the journal."""
        return [
            self.scored(place, [(score.logprob, score.tokens) for score in of_sample], truncated=place in truncated)
            for place, of_sample in zip(places, scores, strict=True)
        ]

    def scored(self, place: int, scores: Sequence[tuple[float, int]], *, truncated: bool) -> Answer:
        """The log-probability and the tokens of each of a sample's options, for the journal.

        Raises:
            UserError: a log-probability is not finite, and says nothing.
        """
        for option, (logprob, _) in zip(self.candidates(place), scores, strict=True):
            if not math.isfinite(logprob):
                raise UserError(
                    f"{self.label(place)}: the log-probability of option {option!r} is {logprob}; expected a finite "
                    "number",
                    remedy="use --dtype float32 or bfloat16, or look at the model's weights and the decoder",
                )
        return Answer(place, "", truncated, scores=list(scores))


@dataclass(frozen=True, kw_only=True)
class SampleOptionTask(OptionTask, SampleTask):
    """A pass over samples that have candidates."""

    def candidates(self, place: int) -> Sequence[str]:
        return self.samples[place].candidates

    def option_ids(self, tokenizer: Any, *, encoder_decoder: bool) -> list[OptionIds]:
        encoder = ViewEncoder(tokenizer, self.wording, (self.view,), encoder_decoder=encoder_decoder)
        return [encoder.option_ids(sample) for sample in self.samples]
