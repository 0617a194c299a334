"""Samples as a task: PIPER's prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.config.recipe import View
from d2e_sft.data.prompts import SettingPrompts
from d2e_sft.data.sample import EventSample
from d2e_sft.data.views import ViewEncoder
from d2e_sft.util.errors import UserError
from eval.run.engines.task import TokenPrompts, prompt_budget


@dataclass(frozen=True)
class SampleTask:
    """A pass over a benchmark's samples.

    Attributes:
        samples: all samples of the pass, of which some may have been decoded before.
        wording: their prompts.
        without_context: the prompts are the imagined ones.
        overlong: `error` or `truncate_context`, for prompts beyond the model's context.
    """

    samples: Sequence[EventSample]
    wording: SettingPrompts
    decoding: DecodingConfig
    without_context: bool
    overlong: str

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def title(self) -> str:
        """What is decoded, for a progress bar."""
        return "without context" if self.without_context else f"α={self.decoding.alpha:g}"

    @property
    def groups(self) -> list[tuple[str, str, str]]:
        """Of each sample: those of a dataset, a relation and a format have prompts that begin alike."""
        return [(sample.format, sample.dataset, sample.relation) for sample in self.samples]

    def label(self, place: int) -> str:
        """The sample's name, for messages."""
        return f"sample {self.samples[place].id!r} of {self.samples[place].dataset!r}"

    def messages(self, place: int) -> list[dict[str, str]]:
        """The conversation of the view that is answered."""
        return self.wording.messages(self.samples[place], self._view)

    def tokens(self, tokenizer: Any, *, encoder_decoder: bool, limit: int | None) -> TokenPrompts:
        """See `Task.tokens`."""
        views: tuple[View, ...] = (self._view, "imagined") if self.decoding.alpha > 0 else (self._view,)
        encoder = ViewEncoder(tokenizer, self.wording, views, encoder_decoder=encoder_decoder)
        originals = encoder.all_prompt_ids(self.samples, self._view)
        budget = prompt_budget(limit, self.decoding.max_new_tokens, encoder_decoder=encoder_decoder)
        truncated = self._fit(encoder, originals, budget)
        imagined = encoder.all_prompt_ids(self.samples, "imagined") if self.decoding.alpha > 0 else None
        return TokenPrompts(originals, imagined, frozenset(truncated), encoder.end_of_turn)

    @property
    def _view(self) -> View:
        return "imagined" if self.without_context else "original"

    def _fit(self, encoder: ViewEncoder, prompts: list[list[int]], budget: int | None) -> list[int]:
        """Cut the contexts of prompts beyond the budget, in place; their indices."""
        if budget is None:
            return []
        too_long = [i for i, prompt in enumerate(prompts) if len(prompt) > budget]
        if not too_long:
            return []
        if self.overlong == "error":
            raise self._too_long(prompts, too_long, budget, "")
        for i in too_long:
            prompts[i] = encoder.prompt_ids(self.samples[i], self._view, max(budget, 0))
        still = [i for i in too_long if len(prompts[i]) > budget]
        if still:
            raise self._too_long(prompts, still, budget, " even without their contexts")
        return too_long

    def _too_long(self, prompts: Sequence[list[int]], which: Sequence[int], budget: int, how: str) -> UserError:
        longest = max(which, key=lambda i: len(prompts[i]))
        remedy = "lower --max-new-tokens, or use a model with a longer context"
        if not how:
            remedy = f"cut the ends of those contexts with --overlong truncate_context, {remedy}"
        elif self.wording.setting == "few_shot":
            remedy = f"give shorter --demonstrations, {remedy}"
        return UserError(
            f"{len(which)} of {len(self.samples)} samples exceed the model's context{how}: prompts may have {budget} "
            f"tokens beside {self.decoding.max_new_tokens} new ones, and the longest, {self.samples[longest].id!r} of "
            f"{self.samples[longest].dataset!r}, has {len(prompts[longest])}",
            remedy,
        )
