"""Log-probabilities of given answers: which of several options a model finds likelier, plainly or debiased.

Nothing is generated. The options of a prompt are branches of one packed row, so the prompt goes through the model
once for all its options. A contrast takes one more pass without the context. Models that cannot take packed rows get
one padded row per option.

Legend: R answers (an option of a prompt), N their scored tokens, H hidden size, V vocabulary.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.decoding.cache import Prefix, prefill
from d2e_sft.decoding.decoders import ChosenDecoder, RowStates, decoded_scores, decoder_of
from d2e_sft.decoding.pairs import OptionScore, PromptError, TokenPair, Tokens, resolved
from d2e_sft.decoding.rows import (
    attending_by_branch,
    batches_of,
    budget_of,
    decoder_start_id,
    decodes_packed,
    no_gradients,
)
from d2e_sft.model.collation import encoder_inputs, left_pad, right_pad
from d2e_sft.model.finite import non_finite_output
from d2e_sft.model.forward import evaluating, head_of, last_logits
from d2e_sft.model.packing import pack
from d2e_sft.util.errors import UserError

# Tokens whose distributions are in memory at once: about 1 GB for both views and a vocabulary of 150,000.
_AT_ONCE = 512
# (prompt, option, number of scored tokens) → hidden states (scored, H) that predict these tokens, on the CPU.
KeptStates = dict[tuple[tuple[int, ...], tuple[int, ...], int], Tensor]


@dataclass(frozen=True)
class _Answer:
    """One option of a pair; only its last `scored` tokens count."""

    pair: TokenPair
    tokens: Tokens

    @property
    def scored(self) -> int:
        return len(self.tokens) - self.pair.given


def score(
    model: Any,
    pairs: Sequence[TokenPair],
    decoding: DecodingConfig = DecodingConfig(),
    *,
    kept: KeptStates | None = None,
) -> Iterator[tuple[int, list[OptionScore]]]:
    """Compute the log-probability of each pair's options under the distribution that decoding chooses from.

    Yields the index of a pair and the scores of its options, batch by batch.

    Args:
        model: A causal or an encoder-decoder language model; scores in eval mode.
        pairs: Prompts and their options as token ids.
        decoding: The decoder, and `batch_size` (prompts that go through the model together).
        kept: States of earlier calls with this model, reused and added to. They take 4 or 2 bytes · hidden size per
            scored token and view. Only used for models that take packed rows.

    Raises:
        UserError: As `generate`, or a log-probability is NaN or infinite. A plausibility cut-off, which leaves tokens
            no probability, is an error, too.
        ValueError: An imagined prompt is missing, or a prompt or an option has no token.
    """
    if decoding.plausibility > 0:
        raise UserError(
            f"plausibility={decoding.plausibility:g}: an option with a token below the cut-off would have no "
            "probability at all; expected 0",
            "score options without it",
        )
    pairs = resolved(pairs, decoding, model)
    answers = [[_Answer(pair, option) for option in pair.options] for pair in pairs]
    for index, options in enumerate(answers):
        if any(answer.scored < 1 for answer in options):
            raise PromptError(f"prompt {index} has an option with no token to score", "give options with tokens")
    return _by_batches(model, pairs, answers, decoding, kept)


def _by_batches(
    model: Any,
    pairs: Sequence[TokenPair],
    answers: Sequence[Sequence[_Answer]],
    decoding: DecodingConfig,
    kept: KeptStates | None,
) -> Iterator[tuple[int, list[OptionScore]]]:
    for indices, prefix in batches_of(pairs, budget_of(model, decoding), decoding.group_batch_size):
        scores = iter(_scored(model, [answer for i in indices for answer in answers[i]], prefix, decoding, kept))
        for index in indices:
            options = [next(scores) for _ in answers[index]]
            for number, option in enumerate(options, start=1):
                if not math.isfinite(option.logprob):
                    problem = f"the log-probability of option {number} is {option.logprob}"
                    raise non_finite_output(pairs[index].name, problem, model)
            yield index, options


def _scored(
    model: Any, answers: Sequence[_Answer], prefix: Prefix, decoding: DecodingConfig, kept: KeptStates | None
) -> list[OptionScore]:
    decoder, size = decoder_of(decoding), decoding.group_batch_size
    with no_gradients(model), evaluating(model):
        if decodes_packed(model):
            with attending_by_branch(model) as causal:
                states = _packed_states(causal, answers, prefix, kept)
                return _scores(answers, states, decoder, *head_of(causal))
        logits_of = _decoder_logits if model.config.is_encoder_decoder else _padded_logits
        parts = [answers[start : start + size] for start in range(0, len(answers), size)]
        return [option_score for part in parts for option_score in _scores(part, logits_of(model, part), decoder)]


def _rows_of(answers: Sequence[_Answer]) -> list[tuple[Any, _Answer]]:
    """Each answer with its original prompt, then those with an imagined prompt with that one."""
    paired = [(answer.pair.imagined, answer) for answer in answers if answer.pair.imagined is not None]
    return [(answer.pair.original, answer) for answer in answers] + paired


def _packed_states(model: Any, answers: Sequence[_Answer], prefix: Prefix, kept: KeptStates | None) -> list[Tensor]:
    """For each of `_rows_of(answers)`, the hidden states (scored, H) that predict its scored tokens."""
    rows = _rows_of(answers)
    keys = [(tuple(prompt), tuple(answer.tokens), answer.scored) for prompt, answer in rows]
    if kept is not None and all(key in kept for key in keys):
        return [kept[key].to(model.device) for key in keys]
    sequences = [[*prompt, *answer.tokens[:-1]] for prompt, answer in rows]
    longest: list[list[int]] = []  # those that are not a prefix of another one
    owner = [0] * len(sequences)  # for each sequence the longest one that contains it
    # In reverse lexicographic order, a prefix directly follows the sequences that it begins.
    for i in sorted(range(len(sequences)), key=lambda i: sequences[i], reverse=True):
        if not longest or longest[-1][: len(sequences[i])] != sequences[i]:
            longest.append(sequences[i])
        owner[i] = len(longest) - 1
    row = pack([longest], prefix=len(prefix.tokens))
    places = []
    for sequence, whole, (_, answer) in zip(sequences, owner, rows, strict=True):
        places += row.indices[whole][len(sequence) - answer.scored : len(sequence)]
    _, hidden = prefill(model, row, prefix, places)
    states = list(hidden.split([answer.scored for _, answer in rows]))
    if kept is not None:
        kept.update(zip(keys, (state.cpu() for state in states), strict=True))
    return states


def _padded_logits(model: Any, answers: Sequence[_Answer]) -> list[Tensor]:
    """For each of `_rows_of(answers)`, the logits (scored, V) of its scored tokens, from one left-padded row each."""
    rows = _rows_of(answers)
    inputs = left_pad([[*prompt, *answer.tokens[:-1]] for prompt, answer in rows], 0)
    keep = max(answer.scored for _, answer in rows)
    on_device = {name: tensor.to(model.device) for name, tensor in inputs.items()}
    logits, _ = last_logits(model, keep, **on_device, use_cache=False)
    return [logits[i, keep - answer.scored :] for i, (_, answer) in enumerate(rows)]


def _decoder_logits(model: Any, answers: Sequence[_Answer]) -> list[Tensor]:
    """Like `_padded_logits`, for an encoder-decoder: each prompt is encoded once for all its options."""
    rows = _rows_of(answers)
    prompts = list(dict.fromkeys(tuple(prompt) for prompt, _ in rows))
    place = {prompt: i for i, prompt in enumerate(prompts)}
    rows_of_prompt = torch.tensor([place[tuple(prompt)] for prompt, _ in rows], device=model.device)
    inputs = {name: tensor.to(model.device) for name, tensor in encoder_inputs(prompts, 0).items()}
    start = decoder_start_id(model)
    logits = model(
        encoder_outputs=(model.get_encoder()(**inputs)[0][rows_of_prompt],),
        attention_mask=inputs["attention_mask"][rows_of_prompt],
        decoder_input_ids=right_pad([[start, *answer.tokens[:-1]] for _, answer in rows], 0).to(model.device),
        use_cache=False,
    ).logits
    lengths = [len(answer.tokens) for _, answer in rows]
    return [
        logits[i, length - answer.scored : length]
        for i, (length, (_, answer)) in enumerate(zip(lengths, rows, strict=True))
    ]


def _scores(
    answers: Sequence[_Answer], states: Sequence[Tensor], decoder: ChosenDecoder, *head: Any
) -> list[OptionScore]:
    """Scores of the answers, from the states of `_rows_of(answers)` that predict the scored tokens."""
    targets = [token for answer in answers for token in answer.tokens[answer.pair.given :]]
    pairs = [answer.pair for answer in answers for _ in range(answer.scored)]
    original, imagined = torch.cat([*states[: len(answers)]]), torch.cat([*states[len(answers) :], states[0][:0]])
    device = original.device
    target = torch.tensor(targets, device=device)
    alpha = torch.tensor([float(pair.alpha or 0.0) for pair in pairs], device=device)
    paired = torch.tensor([pair.imagined is not None for pair in pairs], device=device)
    logprobs, greedy = [], []
    used = 0  # imagined states used so far
    for start in range(0, len(targets), _AT_ONCE):
        end = min(start + _AT_ONCE, len(targets))
        partner = paired[start:end].nonzero().squeeze(1)
        part = RowStates(original[start:end], imagined[used : used + len(partner)], partner, *head)
        used += len(partner)
        logits, _ = decoded_scores(part, decoder, alpha[start:end][partner], with_original=False)
        tokens = target[start:end, None]
        logprobs.append(logits.log_softmax(dim=-1).gather(1, tokens).squeeze(1))
        greedy.append(logits.argmax(dim=-1) == target[start:end])
    lengths = [answer.scored for answer in answers]
    # Summed in float64, so that the order of the tokens makes no difference to a tie.
    values, chosen = torch.cat(logprobs).double().split(lengths), torch.cat(greedy).split(lengths)
    return [
        OptionScore(value.sum().item(), len(value), bool(first.all()))
        for value, first in zip(values, chosen, strict=True)
    ]
