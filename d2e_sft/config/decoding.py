"""Options of decoding, as one object that is checked once."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

from d2e_sft.config.functions import parse_named, refuse_function
from d2e_sft.util.errors import UserError

# The decoders of `--decoder`, and their options with defaults; their formulas are in `d2e_sft/decoding/decoders.py`.
DECODERS: Mapping[str, Mapping[str, float]] = {
    "plain": {},
    "d2e": {"alpha": 0.5},
    "cad": {"weight": 1.0},
    "adacad": {"floor": 0.0},
}
# Largest debias ratio in training and decoding. Beyond it the subtraction leaves nothing of the original view, and
# half precision overflows.
MAX_ALPHA = 10.0
# The keys of `DecodingConfig.record`; each is also an option of the command line.
RECORDED = ("alpha", "decoder", "plausibility")


@dataclass(frozen=True)
class DecodingConfig:
    """How answers are decoded, in process and in vLLM; names are those of transformers' `generate` if it has one.

    Attributes:
        alpha: The debias ratio α of the decoder `d2e`, from 0 to `MAX_ALPHA`; 0 decodes plainly. It is 0 for
            other decoders.
        decoder: How both views' logits become the next token's: `NAME` or `NAME:KEY=VALUE,…` (see `DECODERS`), or a
            custom function, `module:function`. It is kept with all options written out, except that
            `d2e:alpha=VALUE` sets `alpha`.
        max_new_tokens: Longest answer in tokens, without the stop token.
        temperature: 0 takes the most likely token; otherwise it divides the scores before a token is drawn.
        top_k, top_p: Draw only among the k likeliest tokens, and the likeliest with `top_p` of the probability.
        plausibility: β in [0, 1]: only tokens that the original view gives at least β times the probability of its
            likeliest token (Li et al. 2023, contrastive decoding); 0 allows all.
        seed: Seed of the draws. Each prompt has its own, by its index, whatever batches the prompts are cut into.
        stop_strings: Strings that end an answer and stay in it, as in transformers.
        num_beams: Beams of transformers' beam search: plain decoding of an encoder-decoder model, in process.
        batch_size: Prompts that are decoded at a time, in process; None: as many as fit the memory, up to 64.
        compiled: Compile the step (torch.compile) with static shapes; pays off on a GPU, from some hundred prompts on.

    Raises:
        UserError: a value is out of range, or there is no such decoder or option.
    """

    alpha: float = 0.5
    max_new_tokens: int = 64
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    plausibility: float = 0.0
    seed: int = 0
    stop_strings: Sequence[str] = ()
    num_beams: int = 1
    batch_size: int | None = None
    compiled: bool = False
    decoder: str = "d2e"
    GROUP_BATCH_SIZE: ClassVar[int] = 16  # prompts that enter together

    def __post_init__(self) -> None:
        name, options = parse_decoder(self.decoder)
        object.__setattr__(self, "alpha", options.pop("alpha", self.alpha) if name == "d2e" else 0.0)
        texts = [f"{key}={value!r}".removesuffix(".0") for key, value in options.items()]
        object.__setattr__(self, "decoder", f"{name}:{','.join(texts)}" if texts else name)
        check_alpha(self.alpha)
        if self.num_beams > 1 and (self.needs_imagined or self.temperature):
            mode = "debiased decoding" if self.needs_imagined else f"temperature={self.temperature:g}"
            raise UserError(
                f"num_beams={self.num_beams} with {mode}: beam search is for plain greedy decoding; debiased, each "
                "hypothesis would need an imagined row of its own",
                "decode plainly (--decoder plain, or alpha=0), or use num_beams=1",
            )
        ranges = {
            "num_beams": (self.num_beams >= 1, "1 or more"),
            "max_new_tokens": (self.max_new_tokens >= 1, "1 or more"),
            "temperature": (0 <= self.temperature < math.inf, "0 or more"),
            "top_k": (self.top_k >= 0, "0 (all tokens) or more"),
            "top_p": (0 < self.top_p <= 1, "above 0 and at most 1"),
            "plausibility": (_is_number(self.plausibility) and 0 <= self.plausibility <= 1, "0 to 1"),
            "batch_size": (self.group_batch_size >= 1, "1 or more"),
        }
        for name, (fits, expected) in ranges.items():
            if not fits:
                raise UserError(f"{name}={getattr(self, name)}: out of range; expected {expected}")
        if isinstance(self.stop_strings, str) or not all(self.stop_strings):
            raise UserError(f"stop_strings={self.stop_strings!r}: expected a list of texts, none of them empty")

    @property
    def group_batch_size(self) -> int:
        """Number of prompts of a group that one process decodes as a whole."""
        return self.GROUP_BATCH_SIZE if self.batch_size is None else self.batch_size

    @property
    def needs_imagined(self) -> bool:
        """Whether the prompt without context is decoded too; otherwise decoding is plain."""
        return self.alpha > 0 if self.decoder == "d2e" else self.decoder != "plain"

    def record(self) -> dict[str, Any]:
        """What results depend on, as JSON: α (null for other decoders) and non-default options; see `describe`."""
        contrasts = self.decoder not in ("d2e", "plain")
        return {
            "alpha": None if contrasts else self.alpha,
            **({"decoder": self.decoder} if contrasts else {}),
            **({"plausibility": self.plausibility} if self.plausibility > 0 else {}),
            **({"num_beams": self.num_beams} if self.num_beams > 1 else {}),
        }


def given_decoder(decoder: str | None, alpha: float | None, default: float) -> dict[str, Any]:
    """Return arguments for a `DecodingConfig`; UserError for an α if the decoder has none or gives its own."""
    ratio = default if alpha is None else alpha
    if decoder is None:
        return {"alpha": ratio}
    name, options = parse_decoder(decoder)
    if alpha is not None and (name != "d2e" or "alpha" in options) and not (name == "plain" and alpha == 0):
        has = "gives its own α" if name == "d2e" else "has no α, which is the ratio of d2e"
        raise UserError(f"alpha {alpha:g} with the decoder {decoder}: it {has}; expected one of the two", "drop one")
    return {"decoder": decoder, "alpha": ratio}


def describe(record: Mapping[str, Any]) -> str:
    """Describe a record of decoding in words that follow "decoded"; other keys of the record are ignored."""
    alpha, decoder = record.get("alpha"), record.get("decoder")
    if not alpha and not decoder:
        return "plainly" + (f" with {record['num_beams']} beams" if record.get("num_beams") else "")
    text = f"with {decoder}" if decoder else f"debiased with α = {alpha:g}"
    return text + (f" and a plausibility cut-off of {record['plausibility']:g}" if record.get("plausibility") else "")


def parse_decoder(text: str) -> tuple[str, dict[str, float]]:
    """Return the name and options of `NAME` or `NAME:KEY=VALUE,…`, with defaults for options that are not given.

    The `alpha` of `d2e` has no default here: it is the run's, or that of `DecodingConfig`.
    """
    refuse_function("decoder", text)
    name, options = parse_named("decoder", text, DECODERS, {"alpha": MAX_ALPHA})
    return name, {key: value for key, value in DECODERS.get(name, {}).items() if key != "alpha"} | options


def check_alpha(alpha: Any) -> None:
    """Check a debias ratio, wherever it comes from; UserError unless it is a number from 0 to `MAX_ALPHA`."""
    if not (_is_number(alpha) and 0 <= alpha <= MAX_ALPHA):
        raise UserError(f"alpha={alpha}: not a debias ratio; expected a number from 0 to {MAX_ALPHA:g}")


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
