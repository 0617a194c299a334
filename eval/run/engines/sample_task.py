"""Samples as a task: PIPER's prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from d2e_sft.config.recipe import View
from d2e_sft.data.chat_template import Messages
from d2e_sft.data.prompts import SettingPrompts
from d2e_sft.data.sample import EventSample
from d2e_sft.data.views import ViewEncoder
from eval.run.engines.engine import Task


@dataclass(frozen=True, kw_only=True)
class SampleTask(Task):
    """A pass over a benchmark's samples.

    Attributes:
        samples: all samples of the pass, of which some may have been decoded before.
        wording: their prompts.
        overlong: `error` or `truncate_context`, for prompts beyond the model's context.
    """

    samples: Sequence[EventSample]
    wording: SettingPrompts
    overlong: str

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def groups(self) -> list[tuple[str, str, str]]:
        """Samples of a dataset, a relation and a format have prompts that begin alike."""
        return [(sample.format, sample.dataset, sample.relation) for sample in self.samples]

    def label(self, place: int) -> str:
        return f"sample {self._name(place)}"

    def messages(self, place: int, view: View | None = None) -> Messages:
        return self.wording.messages(self.samples[place], view or self.view)

    def shorten(
        self, prompts: list[list[int]], places: list[int], budget: int, tokenizer: Any, *, encoder_decoder: bool
    ) -> None:
        """Cut the ends of the contexts, where that was asked for."""
        remedy, how = "lower --max-new-tokens, or use a model with a longer context", ""
        if self.overlong == "error":
            remedy = f"cut the ends of those contexts with --overlong truncate_context, {remedy}"
        else:
            encoder = ViewEncoder(tokenizer, self.wording, (self.view,), encoder_decoder=encoder_decoder)
            for place in places:
                prompts[place] = encoder.prompt_ids(self.samples[place], self.view, max(budget, 0))
            places, how = [place for place in places if len(prompts[place]) > budget], " even without their contexts"
            if self.wording.setting == "few_shot":
                remedy = f"give shorter --demonstrations, {remedy}"
        if places:
            what = f"samples exceed the model's context{how}"
            raise self.too_long(prompts, places, budget, what, self._name, remedy)

    def _name(self, place: int) -> str:
        return f"{self.samples[place].id!r} of {self.samples[place].dataset!r}"
