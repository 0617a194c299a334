"""Log-probabilities of given answers: which of several options a model finds likelier, plainly or debiased.

Nothing is generated. The options of a prompt are branches of one packed row, so the prompt goes through the model once
however many options it has, and once more without its context where that is subtracted. A model that takes no packed
rows gets one padded row an option.

Legend: R answers (an option of a prompt), N their scored tokens, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.decoding.batches import batches_of, check_counts
from d2e_sft.decoding.choice import Head, RowStates, decoded_scores
from d2e_sft.decoding.decoders import ChosenDecoder, decoder_of
from d2e_sft.decoding.generate import decoding_of_pairs
from d2e_sft.decoding.rows import PaddedRows, Prefix, attending_by_branch, decodes_packed, no_gradients, prefill
from d2e_sft.model.collation import encoder_inputs, left_pad, right_pad
from d2e_sft.model.forward import head_of, last_logits
from d2e_sft.model.packing import pack
from d2e_sft.util.errors import UserError

Tokens = Sequence[int]
# Tokens whose distributions are in memory at once: with a vocabulary of 150,000 and both views about 1 GB.
_AT_ONCE = 512
# (prompt, option, how many of its last tokens are scored) → hidden states (scored, H) that predict these, on the CPU.
KeptStates = dict[tuple[tuple[int, ...], tuple[int, ...], int], Tensor]


@dataclass(frozen=True)
class OptionScore:
    """How likely one option is.

    Attributes:
        logprob: the sum of its tokens' log-probabilities, in nats.
        tokens: how many these are.
        greedy: whether each of them is the likeliest one, so that greedy decoding would write the option.
    """

    logprob: float
    tokens: int
    greedy: bool


@dataclass(frozen=True)
class _Answer:
    """An option as the model reads it."""

    original: Tokens
    imagined: Tokens
    decoding: DecodingConfig
    tokens: Tokens
    scored: int  # its last tokens, whose probabilities are asked for


def score_options(
    model: Any,
    originals: Sequence[Tokens],
    imagined: Sequence[Tokens] | None,
    options: Sequence[Sequence[Tokens]],
    decoding: DecodingConfig = DecodingConfig(),
    *,
    given: Sequence[int] | None = None,
    alpha: Sequence[float] | None = None,
    groups: Sequence[Hashable] | None = None,
    on_batch: Callable[[list[int], list[list[OptionScore]]], object] = lambda indices, scores: None,
    pad_id: int = 0,
    kept: KeptStates | None = None,
) -> list[list[OptionScore]]:
    """The log-probability of each prompt's options, token by token under the distribution that decoding chooses from.

    Args:
        model: a causal or an encoder-decoder language model in eval mode.
        originals: token ids of each original prompt.
        imagined: token ids of each prompt without context; needed unless all are scored plainly. A pair whose two
            prompts are equal (no context to remove) is.
        options: for each prompt the token ids of its options.
        decoding: the decoder and `batch_size` (prompts that go through the model together) are read.
        given: for each prompt, how many of its options' first tokens are given and not scored: what a response form
            begins with. None: none.
        alpha: the debias ratio of each prompt, of the decoder `d2e`; None: that of `decoding`.
        groups: prompts of one group begin alike and share their batches; None: all are one.
        on_batch: called after each batch with the indices of its prompts and the scores of their options.
        pad_id: fills masked places where there are any.
        kept: states of earlier calls with this model, which are then not computed again; those of this call are added,
            4 or 2 bytes · hidden size for each scored token and view. Only of a model that takes packed rows.

    Returns:
        for each prompt the scores of its options, in order.

    Raises:
        UserError: as `generate_debiased`, or there is a plausibility cut-off, which leaves tokens no probability.
        ValueError: a list is of another length than `originals`, or a prompt or an option has no token.
    """
    if decoding.plausibility > 0:
        raise UserError(
            f"plausibility={decoding.plausibility:g}: an option with a token below the cut-off would have no "
            "probability at all; expected 0",
            "score options without it",
        )
    check_counts(originals, imagined=imagined, options=options, given=given, alpha=alpha, groups=groups)
    of_pairs = decoding_of_pairs(originals, imagined, decoding, alpha)
    answers = [
        [
            _Answer(
                original,
                imagined[i] if imagined is not None and of_pairs[i].needs_imagined else (),
                of_pairs[i],
                option,
                len(option) - (0 if given is None else given[i]),
            )
            for option in options[i]
        ]
        for i, original in enumerate(originals)
    ]
    _check_tokens(answers)
    results: list[list[OptionScore]] = [[] for _ in originals]
    for indices, prefix in batches_of(originals, imagined, groups, decoding.batch_size):
        flat = [answer for i in indices for answer in answers[i]]
        scores = iter(_score(model, flat, prefix, decoding, pad_id, kept))
        of_batch = [[next(scores) for _ in answers[i]] for i in indices]
        for i, of_prompt in zip(indices, of_batch, strict=True):
            results[i] = of_prompt
        on_batch(indices, of_batch)
    return results


def _check_tokens(answers: Sequence[Sequence[_Answer]]) -> None:
    for i, of_prompt in enumerate(answers):
        for j, answer in enumerate(of_prompt):
            if not len(answer.original) or (answer.decoding.needs_imagined and not len(answer.imagined)):
                raise ValueError(f"prompt {i} has no token to predict the next one from")
            if answer.scored < 1:
                raise ValueError(f"options[{i}][{j}] has no token to score")


def _score(
    model: Any,
    answers: Sequence[_Answer],
    prefix: Prefix,
    decoding: DecodingConfig,
    pad_id: int,
    kept: KeptStates | None,
) -> list[OptionScore]:
    decoder, size = decoder_of(decoding), decoding.batch_size
    with no_gradients(model):
        if decodes_packed(model):
            with attending_by_branch(model) as causal:
                head = Head(*head_of(causal))
                return _scores(answers, _states_once(causal, answers, prefix, kept), head, decoder)
        states_of = _decoder_logits if model.config.is_encoder_decoder else _padded_logits
        parts = [answers[start : start + size] for start in range(0, len(answers), size)]
        scored = [_scores(part, states_of(model, part, pad_id), PaddedRows.head, decoder) for part in parts]
        return [score for part in scored for score in part]


def _rows_of(answers: Sequence[_Answer]) -> list[tuple[Tokens, _Answer]]:
    """Each answer with its original prompt, then each that needs it with its imagined prompt."""
    paired = [(answer.imagined, answer) for answer in answers if answer.decoding.needs_imagined]
    return [(answer.original, answer) for answer in answers] + paired


def _states_once(model: Any, answers: Sequence[_Answer], prefix: Prefix, kept: KeptStates | None) -> list[Tensor]:
    """As `_packed_states`, which is asked only where a row of the batch is not kept."""
    if kept is None:
        return _packed_states(model, answers, prefix)
    keys = [(tuple(prompt), tuple(answer.tokens), answer.scored) for prompt, answer in _rows_of(answers)]
    if not all(key in kept for key in keys):
        states = _packed_states(model, answers, prefix)
        kept.update(zip(keys, (of_row.cpu() for of_row in states), strict=True))
    return [kept[key].to(model.device) for key in keys]


def _packed_states(model: Any, answers: Sequence[_Answer], prefix: Prefix) -> list[Tensor]:
    """Of each of `_rows_of(answers)` the hidden states (scored, H) that predict its scored tokens."""
    rows = _rows_of(answers)
    sequences = [[*prompt, *answer.tokens[:-1]] for prompt, answer in rows]
    kept, part_of = _without_beginnings(sequences)
    row = pack([kept], prefix=len(prefix.tokens))
    places = []
    for sequence, whole, (_, answer) in zip(sequences, part_of, rows, strict=True):
        places += row.indices[whole][len(sequence) - answer.scored : len(sequence)]
    _, states = prefill(model, row, prefix, places)
    return list(states.split([answer.scored for _, answer in rows]))


def _without_beginnings(sequences: Sequence[list[int]]) -> tuple[list[list[int]], list[int]]:
    """The sequences that no other begins with, and for each given one the place of the one that begins with it."""
    kept: list[list[int]] = []
    part_of = [0] * len(sequences)
    # From the last to the first in order, what a sequence is the beginning of stands right before it.
    for i in sorted(range(len(sequences)), key=lambda i: sequences[i], reverse=True):
        if not kept or kept[-1][: len(sequences[i])] != sequences[i]:
            kept.append(sequences[i])
        part_of[i] = len(kept) - 1
    return kept, part_of


def _padded_logits(model: Any, answers: Sequence[_Answer], pad_id: int) -> list[Tensor]:
    """Of each of `_rows_of(answers)` the logits (scored, V) of its scored tokens; a left-padded row each."""
    rows = _rows_of(answers)
    inputs = left_pad([[*prompt, *answer.tokens[:-1]] for prompt, answer in rows], pad_id)
    keep = max(answer.scored for _, answer in rows)
    on_device = {name: tensor.to(model.device) for name, tensor in inputs.items()}
    logits, _ = last_logits(model, keep, **on_device, use_cache=False)
    return [logits[i, keep - answer.scored :] for i, (_, answer) in enumerate(rows)]


def _decoder_logits(model: Any, answers: Sequence[_Answer], pad_id: int) -> list[Tensor]:
    """The same of an encoder-decoder model, which encodes each prompt once, whatever options it has."""
    rows = _rows_of(answers)
    prompts = {tuple(prompt): 0 for prompt, _ in rows}
    prompts = {prompt: place for place, prompt in enumerate(prompts)}
    inputs = {name: tensor.to(model.device) for name, tensor in encoder_inputs([*prompts], pad_id).items()}
    of_rows = torch.tensor([prompts[tuple(prompt)] for prompt, _ in rows], device=model.device)
    start = getattr(model.config, "decoder_start_token_id", None)
    first = pad_id if start is None else start
    logits = model(
        encoder_outputs=(model.get_encoder()(**inputs)[0][of_rows],),
        attention_mask=inputs["attention_mask"][of_rows],
        decoder_input_ids=right_pad([[first, *answer.tokens[:-1]] for _, answer in rows], pad_id).to(model.device),
        use_cache=False,
    ).logits
    lengths = [len(answer.tokens) for _, answer in rows]
    return [
        logits[i, length - answer.scored : length]
        for i, (length, (_, answer)) in enumerate(zip(lengths, rows, strict=True))
    ]


def _scores(
    answers: Sequence[_Answer], states: Sequence[Tensor], head: Head, decoder: ChosenDecoder
) -> list[OptionScore]:
    """From the states that predict the scored tokens, in the order of `_rows_of`, to the score of each answer."""
    targets = [token for answer in answers for token in answer.tokens[len(answer.tokens) - answer.scored :]]
    how = [answer.decoding for answer in answers for _ in range(answer.scored)]
    original, imagined = torch.cat([*states[: len(answers)]]), torch.cat([*states[len(answers) :], states[0][:0]])
    device = original.device
    target = torch.tensor(targets, device=device)
    alpha = torch.tensor([float(each.alpha) for each in how], device=device)
    paired = torch.tensor([each.needs_imagined for each in how], device=device)
    logprobs, greedy = [], []
    done = 0  # of the imagined states
    for start in range(0, len(targets), _AT_ONCE):
        end = min(start + _AT_ONCE, len(targets))
        partner = paired[start:end].nonzero().squeeze(1)
        part = RowStates(original[start:end], imagined[done : done + len(partner)], partner)
        done += len(partner)
        logits, _ = decoded_scores(part, head, decoder, alpha[start:end][partner], with_original=False)
        wanted = target[start:end, None]
        logprobs.append(logits.log_softmax(dim=-1).gather(1, wanted).squeeze(1))
        greedy.append(logits.argmax(dim=-1) == target[start:end])
    return _sums(torch.cat(logprobs), torch.cat(greedy), [answer.scored for answer in answers])


def _sums(logprobs: Tensor, greedy: Tensor, lengths: Sequence[int]) -> list[OptionScore]:
    """(N,) by answer; summed as float64, so that the order of the tokens makes no difference to a tie."""
    values, chosen = logprobs.double().split(list(lengths)), greedy.split(list(lengths))
    return [
        OptionScore(of_answer.sum().item(), len(of_answer), bool(is_first.all()))
        for of_answer, is_first in zip(values, chosen, strict=True)
    ]
