"""The prompts of decoding: one question with and without its context, in every engine."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.util.errors import UserError

P_co = TypeVar("P_co", covariant=True)
Tokens = Sequence[int]


@dataclass(frozen=True)
class PromptPair(Generic[P_co]):
    """One prompt with and without its context: token ids, or messages for an endpoint.

    Attributes:
        imagined: The prompt without its context. None, or the same prompt, means plain decoding.
        options: Possible answers, where options are scored.
        given: Number of first tokens that all options share because of their form; they are not scored.
        group: Pairs in a group share a prefix, and are batched together.
        alpha: The debias ratio of this pair; None: that of the `DecodingConfig`.
        name: For messages; `resolved` names a pair without one by its index.
        truncated: The context was cut to fit the model.
        place: Seeds the pair's draws, so that they are the same in a part of a list; None: its index.
    """

    original: P_co
    imagined: P_co | None = None
    options: Sequence[P_co] = ()
    given: int = 0
    group: Hashable = None
    alpha: float | None = None
    name: str = ""
    truncated: bool = False
    place: int | None = None


TokenPair = PromptPair[Tokens]


class PromptError(UserError, ValueError):
    """A prompt that cannot be decoded; a ValueError, too."""


@dataclass(frozen=True)
class OptionScore:
    """The log-probability of an option's tokens, in nats; `greedy`: greedy decoding writes it (False if unknown)."""

    logprob: float
    tokens: int
    greedy: bool = False


@dataclass
class Output:
    """An answer as it grows; engines yield it after each step, and the same object each time.

    Attributes:
        tokenizer: Turns tokens into text; None: there is no text.
        tokens: New tokens so far, without the stop token.
        cancelled: Set it where nobody waits for the rest; the prompt takes no further step then.
        resubmissions: How often vLLM computed the rows of the pair apart, so that it was submitted again.
    """

    index: int
    tokenizer: Any = field(default=None, repr=False)
    tokens: list[int] = field(default_factory=list)
    ended: bool = False
    cancelled: bool = False
    resubmissions: int = 0

    @property
    def text(self) -> str:
        """The text of the tokens, without special tokens."""
        return str(self.tokenizer.decode(self.tokens, skip_special_tokens=True))


def finished(outputs: Iterable[Output]) -> list[Output]:
    """Decode to the end; returns the outputs in the order of their prompts."""
    complete = {output.index: output for output in outputs}
    return [complete[index] for index in sorted(complete)]


def token_pairs(originals: Sequence[Tokens], imagined: Sequence[Tokens] | None = None) -> list[TokenPair]:
    """Pair each original prompt with the imagined one at the same place; UserError for a padded batch."""
    prompts = _prompts("originals", originals)
    if imagined is None:
        return [PromptPair(original) for original in prompts]
    imagined_prompts = _prompts("imagined", imagined)
    if len(imagined_prompts) != len(prompts):
        raise PromptError(
            f"imagined: has {len(imagined_prompts)} prompts for {len(prompts)} originals; expected one for each",
            "give each original's prompt without its context, in the same order",
        )
    return [PromptPair(*both) for both in zip(prompts, imagined_prompts, strict=True)]


def _prompts(name: str, batch: Any) -> list[Tokens]:
    shape = tuple(getattr(batch, "shape", ()))
    prompts: list[Any] = []
    if isinstance(batch, Iterable) and not isinstance(batch, Mapping | str) and not (len(shape) > 1 and shape[0] > 1):
        prompts = [prompt.tolist() if hasattr(prompt, "tolist") else prompt for prompt in batch]
        if all(isinstance(prompt, Sequence) and not isinstance(prompt, str) for prompt in prompts):
            return prompts
    form = f"a tensor of shape {shape}, whose shorter prompts are padded" if len(shape) > 1 else f"{batch!r:.60}"
    raise UserError(
        f"{name}: got {form}; expected a list of token ids for each prompt",
        remedy='use tokenizer(texts)["input_ids"], without padding and return_tensors',
    )


def resolved(pairs: Sequence[TokenPair], decoding: DecodingConfig, model: Any = None) -> list[TokenPair]:
    """Return the pairs as they are decoded: each has its α and place, and `imagined=None` means plain decoding.

    Raises UserError for a wrong α. Raises PromptError if a prompt is missing or empty, or has a token that the `model`
    does not have.
    """
    result, tokens = [], getattr(model and model.get_input_embeddings(), "num_embeddings", None)
    for index, pair in enumerate(pairs):
        name = pair.name or f"prompt {index}"
        if pair.alpha is not None and decoding.decoder != "d2e":
            raise UserError(f"alpha={pair.alpha:g} of {name}: decoder {decoding.decoder} has no α; expected d2e")
        config = decoding if pair.alpha is None else replace(decoding, alpha=pair.alpha)
        if config.needs_imagined and pair.imagined is None:
            raise PromptError(
                f"{name}: {config.decoder} with alpha={config.alpha:g} needs an imagined prompt; got None",
                "give the prompt without its context, or decode plainly with DecodingConfig(alpha=0)",
            )
        plain = not config.needs_imagined or list(pair.original) == list(pair.imagined or ())
        imagined = None if plain else pair.imagined
        if len(pair.original) == 0 or (imagined is not None and len(imagined) == 0):
            raise PromptError(
                f"{name} has no token to predict the next one from", "give a prompt of at least one token"
            )
        for tokens_of in (pair.original, () if imagined is None else imagined):
            if tokens is not None and not 0 <= min(tokens_of, default=0) <= max(tokens_of, default=0) < tokens:
                raise PromptError(
                    f"{name}: has token ids from {min(tokens_of)} to {max(tokens_of)}; expected 0 to {tokens - 1:,}, "
                    "those of the model",
                    "encode the prompt with the model's own tokenizer",
                )
        place = index if pair.place is None else pair.place
        result.append(replace(pair, imagined=imagined, alpha=config.alpha, name=name, place=place))
    return result
