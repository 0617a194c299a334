"""What decoding refuses: each call and its message in `test_messages.yaml`."""

from typing import Any

import torch

from d2e_sft.decoding import DecodingConfig, PromptPair, answer_samples, generate_debiased, token_pairs
from tests.d2e_sft.decoding.pairs import encoder_decoder, generated, scored
from tests.messages import Call, messages_of
from tests.tiny import tiny_model, tiny_tokenizer

ONE = PromptPair([7, 8], [7], [[5]])


def refused(pair: PromptPair[Any], **decoding: Any) -> Call:
    return lambda tmp: generated(tiny_model(), [pair], DecodingConfig(**decoding))


def unscored(pair: PromptPair[Any], **decoding: Any) -> Call:
    return lambda tmp: scored(tiny_model(), [pair], DecodingConfig(**decoding))


def prompts(given: Any, *imagined: Any) -> Call:
    return lambda tmp: token_pairs(given, *imagined)


def samples(rows: Any, decoding: Any = DecodingConfig()) -> Call:  # noqa: B008
    return lambda tmp: answer_samples(tiny_model(), tiny_tokenizer(), rows, decoding)


test_message = messages_of(
    __file__,
    {
        "no imagined prompt": refused(PromptPair([7, 8])),
        "no imagined prompt of a list": lambda tmp: generate_debiased(tiny_model(), [[7]], None, DecodingConfig()),
        "no imagined prompt for another decoder": refused(PromptPair([7, 8]), decoder="cad"),
        "an empty prompt": refused(PromptPair([], [8])),
        "an empty imagined prompt": unscored(PromptPair([7, 8], [])),
        "a token beyond the vocabulary": refused(PromptPair([7], [8, 999_999])),
        "an α for another decoder": refused(PromptPair([7], [8], alpha=0.5), decoder="cad"),
        "an infinite α": unscored(PromptPair([7], [8], alpha=float("inf"))),
        "beams without an encoder": refused(PromptPair([7]), alpha=0, num_beams=3),
        "NaN of beams": lambda tmp: generated(
            _spoiled(), [PromptPair([7])], DecodingConfig(alpha=0, num_beams=3), stop_ids=[]
        ),
        "stop strings without a tokenizer": refused(ONE, stop_strings=["x"]),
        "an option without tokens": unscored(PromptPair([7, 8], [7], [[]])),
        "an option of given tokens only": unscored(PromptPair([7, 8], [7], [[5]], given=1)),
        "options with a cut-off": unscored(ONE, plausibility=0.1),
        "lists of different lengths": prompts([[7, 8], [8, 9]], [[7]]),
        "a padded batch": prompts(torch.tensor([[7, 8], [8, 0]])),
        "one prompt as a tensor": prompts(torch.tensor([7, 8])),
        "one prompt as a list": prompts([7, 8]),
        "a dictionary": prompts({"input_ids": [[7, 8]]}),
        "a text": prompts(["What?"]),
        "a number for a configuration": samples([{"question": "What?"}], 0.5),
        "a row without a question": samples([{"query": "What?"}]),
    },
)


def _spoiled() -> Any:
    model = encoder_decoder()
    model.lm_head.weight.data.fill_(torch.nan)
    return model
