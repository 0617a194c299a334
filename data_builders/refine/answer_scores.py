"""Score how strongly a language model expects a sample's answer after each of several contexts.

All contexts of a sample are branches of one packed row, so what their prompts share goes through the model once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from d2e_sft.data.prompts import DEFAULT, load_prompt_set
from d2e_sft.data.sample import EventSample
from d2e_sft.data.views import ViewEncoder
from d2e_sft.decoding import DecodingConfig, PromptPair
from d2e_sft.decoding.likelihood import score
from d2e_sft.model.device import usable_device
from d2e_sft.model.loading import load_model
from d2e_sft.model.positions import position_limit

# Tokens that go through the model together.
_AT_ONCE = 8192


class AnswerScorer:
    """A language model that scores a sample's answer with different contexts, in the wording of training.

    A model without a chat template continues the prompt as a text.

    Args:
        name: of the model, as for `load_model`.
        dtype: torch dtype of its weights.

    Raises:
        UserError: the model cannot be loaded.
    """

    def __init__(self, name: str, dtype: str = "float32") -> None:
        loaded = load_model(name, dtype=dtype)
        self._model, self.tokenizer = loaded.model.to(usable_device()).eval(), loaded.tokenizer
        encodes = bool(self._model.config.is_encoder_decoder)
        in_turns = encodes or getattr(self.tokenizer, "chat_template", None)
        wording = load_prompt_set(DEFAULT, "chat" if in_turns else "completion")
        self._encoder = ViewEncoder(self.tokenizer, wording, ("original",), encoder_decoder=encodes)

    def scores(self, sample: EventSample, contexts: Sequence[str]) -> list[float]:
        """Return the score of the answer with each context, in nats.

        It is the mean log-probability of the accepted answers. If the format has options or labels, it is their margin
        over the others: minus the log of the others' summed probability.
        """
        if not contexts:
            return []
        prompts = self._prompts(sample, contexts)
        responses, given = self._encoder.option_ids(sample)
        pairs = [PromptPair(prompt, options=responses, given=given, name=sample.id) for prompt in prompts]
        size = max(1, _AT_ONCE // max(map(len, prompts)))
        found = sorted(score(self._model, pairs, DecodingConfig(alpha=0.0, batch_size=size)))
        return [_score(sample, [option.logprob for option in options]) for _, options in found]

    def fits(self, sample: EventSample) -> bool:
        """Return whether the model has a position for each token of the sample."""
        limit = position_limit(self._model.config)
        longest = max(map(len, self._encoder.option_ids(sample)[0]))
        return limit is None or len(self._prompts(sample, [sample.context])[0]) + longest <= limit

    def _prompts(self, sample: EventSample, contexts: Sequence[str]) -> list[list[int]]:
        wording = self._encoder.prompt_set
        return self._encoder.chat.ids([wording.messages(sample, "original", context=text) for text in contexts])


def _score(sample: EventSample, logprobs: Sequence[float]) -> float:
    """The score from the log-probabilities of the candidates, or without any of the accepted answers."""
    if not sample.candidates:
        return sum(logprobs) / len(logprobs)
    right = [value for value, option in zip(logprobs, sample.candidates, strict=True) if option in sample.answers]
    wrong = [value for value, option in zip(logprobs, sample.candidates, strict=True) if option not in sample.answers]
    best = max(wrong, default=0.0)
    others = best + math.log(sum(math.exp(value - best) for value in wrong)) if wrong else 0.0
    return sum(right) / len(right) - others
