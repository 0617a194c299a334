"""Debiased generation: each step gives one token to every pair and removes finished pairs from the batch.

A step runs the originals and the imagined prompts as rows of one forward and picks a token by the decoder's scores,
by default `z_original − α · z_imagined`. Both rows of a pair then take this token. A pair that is decoded plainly has
no imagined row.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.data.chat_template import cut, merged_stop_ids
from d2e_sft.data.prompts import PromptSet, load_prompt_set
from d2e_sft.data.rows import samples_of
from d2e_sft.data.sample import EventSample
from d2e_sft.data.views import ViewEncoder
from d2e_sft.decoding.decoders import NO_TOKEN, TokenChoice
from d2e_sft.decoding.pairs import Output, PromptPair, TokenPair, Tokens, finished, resolved, token_pairs
from d2e_sft.decoding.rows import Batch, batches_of, budget_of, decoder_start_id, no_gradients, rows_of
from d2e_sft.model.collation import encoder_inputs
from d2e_sft.model.finite import non_finite_output
from d2e_sft.model.forward import bare_model, evaluating, expect_of_transformers
from d2e_sft.model.loading import check_positions, shared_positions
from d2e_sft.util.errors import UserError
from d2e_sft.util.progress import Progress


def generate(
    model: Any,
    tokenizer: Any,
    pairs: Sequence[TokenPair],
    decoding: DecodingConfig = DecodingConfig(),
    *,
    stop_ids: Sequence[int] | None = None,
) -> Iterator[Output]:
    """Decode prompts debiased, in batches of similar length (PIPER paper, equation 6).

    Yields each pair's `Output` after each of its steps, the last time with `ended`; `finished` waits for all. A pair
    leaves as soon as its output is `cancelled`.

    Args:
        model: A causal or an encoder-decoder language model; decodes in eval mode.
        tokenizer: Turns answers into texts; None: only tokens are needed, and there are no stop strings.
        stop_ids: Tokens that end an answer and are not part of it; None: those of the generation config.

    Raises:
        UserError: An α is out of range or the decoder has none, a custom decoder fails, there are stop strings and
            no tokenizer, or beams and no encoder-decoder model. The scores of a token are NaN or infinite, as where
            float16 overflows.
        ValueError: An imagined prompt is missing, or a prompt has no token.
    """
    if decoding.stop_strings and tokenizer is None:
        raise UserError("stop_strings need a tokenizer to read the tokens with", "pass a tokenizer")
    ends = Ends(frozenset(stop_token_ids(model) if stop_ids is None else stop_ids), decoding, tokenizer)
    pairs = resolved(pairs, decoding, model)
    batches = list(batches_of(pairs, budget_of(model, decoding), decoding.group_batch_size))
    check_beams(model, decoding)
    return (_by_beams if decoding.num_beams > 1 else _by_steps)(model, pairs, decoding, ends, batches)


def generate_debiased(
    model: Any,
    originals: Sequence[Tokens],
    imagined: Sequence[Tokens] | None = None,
    decoding: DecodingConfig | None = None,
    *,
    stop_ids: Sequence[int] | None = None,
) -> list[list[int]]:
    """Decode prompts given as two lists, as one batch, to lists of new tokens; errors are those of `generate`.

    `imagined` is the prompt without its context for each original; None decodes all plainly, unless `decoding` says
    otherwise, which is then an error.
    """
    pairs = token_pairs(originals, imagined)
    if decoding is None:
        decoding = DecodingConfig(alpha=0.0) if imagined is None else DecodingConfig()
    decoding = replace(decoding, batch_size=max(len(pairs), 1))
    return [output.tokens for output in finished(generate(model, None, pairs, decoding, stop_ids=stop_ids))]


def answer_samples(
    model: Any,
    tokenizer: Any,
    samples: Sequence[EventSample] | Sequence[Mapping[str, Any]],
    decoding: DecodingConfig = DecodingConfig(),
    *,
    prompt_set: str | PromptSet = "default",
    max_length: int | None = None,
) -> list[str]:
    """Answer samples, decoded debiased, one text per sample, in order; a sample without context is decoded plainly.

    Args:
        model: A causal or an encoder-decoder language model; answers in eval mode.
        samples: Samples, or dicts with `question` and `context`, `messages` or `prompt`; answers are not needed.
        prompt_set: Wording, by name, as a YAML file, or from `load_prompt_set`, which also takes a form.
        max_length: Longest prompt in tokens; the ends of longer contexts are cut off, and of those that leave the
            answer too few of the model's positions. None: no limit.

    Raises:
        UserError: The model has no chat template, and the form needs one; or a row is not a sample, or an argument
            of another kind; or prompt and answer exceed learned positions.
    """
    expect_of_transformers("model", model, "config")
    expect_of_transformers("tokenizer", tokenizer, "batch_decode")
    if not isinstance(decoding, DecodingConfig):
        raise UserError(f"decoding: got {decoding!r:.60}; expected a DecodingConfig", "give DecodingConfig(alpha=0.5)")
    if not isinstance(prompt_set, str | PromptSet):
        raise UserError(f"prompt_set: got {prompt_set!r:.60}; expected a name, or a set of load_prompt_set")
    if max_length is not None and max_length < 1:
        raise UserError(f"max_length: got {max_length}; expected at least 1, or None for no limit")
    if hasattr(samples, "__len__") and len(samples) == 0:
        return []
    questions = samples_of(samples, "samples", answered=False)
    wording = load_prompt_set(prompt_set) if isinstance(prompt_set, str) else prompt_set
    encoder_decoder = model.config.is_encoder_decoder
    decoding = replace(decoding, stop_strings=(*decoding.stop_strings, *wording.stops))
    views = ViewEncoder(tokenizer, wording, ("original", "imagined"), encoder_decoder=encoder_decoder)
    limit, new_tokens = shared_positions(model.config), decoding.max_new_tokens
    if max_length is not None and limit is not None:
        max_length = max(0, min(max_length, limit - new_tokens))
    pairs, stop_ids = sample_pairs(views, questions, max_length), stop_token_ids(model, views.end_of_turn)
    longest = max((len(pair.original) for pair in pairs), default=0)
    check_positions(model.config, longest + new_tokens, "give max_length, or fewer new tokens")
    texts = [""] * len(pairs)
    with Progress(total=len(pairs), desc="answering", unit="sample") as bar:
        for output in generate(model, tokenizer, pairs, decoding, stop_ids=stop_ids):
            if output.ended:
                texts[output.index] = cut(output.text, wording.stops)
                bar.update()
    return texts


def sample_pairs(
    encoder: ViewEncoder, samples: Sequence[EventSample], max_length: int | None = None
) -> list[TokenPair]:
    """Encode the prompts of samples; those of one format, dataset and relation are a group."""
    return [
        PromptPair(
            encoder.prompt_ids(sample, "original", max_length),
            encoder.prompt_ids(sample, "imagined"),
            group=(sample.format, sample.dataset, sample.relation),
            name=f"sample {sample.id!r} of {sample.dataset!r}",
        )
        for sample in samples
    ]


def stop_token_ids(model: Any, end_of_turn: int | None = None) -> list[int]:
    """Return the end-of-turn token and the stop tokens of the model's generation config."""
    return merged_stop_ids(getattr(model.generation_config, "eos_token_id", None), end_of_turn)


class Ends:
    """What ends an answer: a token, which is not part of it; a string, which is; or its length."""

    def __init__(self, ids: frozenset[int], decoding: DecodingConfig, tokenizer: Any) -> None:
        self.ids, self.strings, self.longest = ids, decoding.stop_strings, decoding.max_new_tokens
        self.tokenizer = tokenizer

    def add(self, token: int, output: Output) -> None:
        """Add a token to an answer, unless it only ends it."""
        output.ended = token in self.ids
        if not output.ended:
            output.tokens.append(token)
            output.ended = len(output.tokens) == self.longest or self._holds_string(output.tokens)

    def _holds_string(self, tokens: Sequence[int]) -> bool:
        if not self.strings:
            return False
        text = self.tokenizer.decode(tokens)
        return any(string in text for string in self.strings)


def _by_steps(
    model: Any, pairs: Sequence[TokenPair], decoding: DecodingConfig, ends: Ends, batches: Sequence[Batch]
) -> Iterator[Output]:
    """Decode batches; each enters as soon as there is room for it."""
    choose, budget = TokenChoice(decoding), budget_of(model, decoding)
    waiting = deque(batches)
    active: list[Output] = []  # the output of the pair in each place
    with evaluating(model), rows_of(model, decoding) as rows:
        while waiting or active:
            with no_gradients(model):
                while waiting:
                    indices, prefix = waiting[0]
                    if active and not budget.fits([pairs[i] for i in (*(out.index for out in active), *indices)]):
                        break
                    waiting.popleft()
                    rows.add([pairs[index] for index in indices], prefix)
                    active += [Output(index, ends.tokenizer) for index in indices]
                states = rows.next_states()
                indices = [output.index for output in active]
                alpha = torch.tensor([float(pairs[index].alpha or 0.0) for index in indices], device=model.device)
                chosen = choose(states, alpha[states.partner], [pairs[index].place or 0 for index in indices])
            for output, token in zip(active, chosen.tolist(), strict=True):
                if output.ended or output.cancelled:  # a compiled batch keeps its rows
                    continue
                if token == NO_TOKEN:
                    problem = "the scores of the next token contain NaN or infinity"
                    raise non_finite_output(pairs[output.index].name, problem, model)
                ends.add(token, output)
                yield output
            running = [not (output.ended or output.cancelled) for output in active]
            with no_gradients(model):
                if not all(running):
                    order = rows.keep(running)
                    active, chosen = [active[place] for place in order], chosen[order]
                if active:  # an ended pair of a compiled batch may have no token
                    rows.append(chosen.clamp(min=0) if decoding.compiled else chosen)


def check_beams(model: Any, decoding: DecodingConfig) -> None:
    """Raise UserError for beams with a decoder-only model."""
    if decoding.num_beams > 1 and not model.config.is_encoder_decoder:
        raise UserError(
            f"num_beams={decoding.num_beams}: this model has only a decoder; expected an encoder-decoder such as T5",
            "use num_beams=1 (drop --num-beams)",
        )


def _by_beams(
    model: Any, pairs: Sequence[TokenPair], decoding: DecodingConfig, ends: Ends, batches: Sequence[Batch]
) -> Iterator[Output]:
    for indices, _ in batches:

        def checked(_: Tensor, scores: Tensor, size: int = len(indices)) -> Tensor:
            if scores.isnan().any():
                problem = "the scores of the next token contain NaN or infinity"
                raise non_finite_output(f"a batch of {size} prompts", problem, model)
            return scores

        inputs = encoder_inputs([pairs[index].original for index in indices], 0)
        with evaluating(model), no_gradients(model), _searching(model) as searched:
            answers = searched.generate(
                **{name: tensor.to(model.device) for name, tensor in inputs.items()},
                num_beams=decoding.num_beams,
                do_sample=False,
                max_new_tokens=decoding.max_new_tokens,
                eos_token_id=sorted(ends.ids) or None,
                logits_processor=LogitsProcessorList([checked]),
            )
        for index, (_, *tokens) in zip(indices, answers.tolist(), strict=True):  # without the decoder's start
            output = Output(index, ends.tokenizer)
            for count, token in enumerate(tokens, start=1):
                ends.add(token, output)
                output.ended = output.ended or count == len(tokens)
                yield output
                if output.ended:
                    break


@contextmanager
def _searching(model: Any) -> Iterator[Any]:
    """Give the model a generation config of ids only: `generate` merges every option of the model's own one.

    Beams, like one beam, are then chosen by the scores alone, without a minimal length or a forced token.
    """
    bare = bare_model(model)
    own = bare.generation_config
    bare.generation_config = GenerationConfig(
        decoder_start_token_id=decoder_start_id(bare), pad_token_id=own.pad_token_id
    )
    try:
        yield bare
    finally:
        bare.generation_config = own
