"""Debiased decoding (D²E-SFT) for transformers' `generate`, in one file that needs only torch and transformers.

transformers loads this file from a model folder's `custom_generate/` if remote code is trusted. Every prompt is given
twice, with its context and without ("imagined"). Each token is chosen from `z_original − α · z_imagined`, and both
streams then take that token. `generate` does everything else.

Legend: B prompts, L tokens of the longest imagined prompt, V vocabulary.
"""

import inspect
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList, RepetitionPenaltyLogitsProcessor

# The debias ratio of this folder's model; written by the export.
DEFAULT_ALPHA = 0.5
_MAX_ALPHA = 10.0
# Options of decoding methods without a second stream, and the values that turn them off.
_NOT_WITH_IT: dict[str, tuple[Any, ...]] = {
    "num_beams": (None, 1),
    "guidance_scale": (None, 1),
    "num_beam_groups": (None, 1),
    "penalty_alpha": (None, 0),
    "dola_layers": (None,),
    "prompt_lookup_num_tokens": (None,),
    "assistant_model": (None,),
    "negative_prompt_ids": (None,),
}


def generate(
    inputs: torch.Tensor | None = None,
    *,
    model: Any,
    imagined_input_ids: torch.Tensor | None = None,
    imagined_attention_mask: torch.Tensor | None = None,
    alpha: float | None = None,
    **kwargs: Any,
) -> Any:
    """transformers' `generate` with two more inputs for debiased decoding.

    Args:
        inputs: The prompts with their contexts (or `input_ids=`).
        imagined_input_ids: (B, L) the same prompts without their contexts. They are padded on the left (for an
            encoder-decoder on the right; T5 takes either).
        imagined_attention_mask: (B, L) 0 for padding; optional for a single prompt.
        alpha: The debias ratio α, by default that of this folder's model. 0 decodes plainly.
        **kwargs: All other arguments of `generate`.

    Returns:
        the result of `generate`. In a dictionary, `scores` are debiased and `logits` belong to the original prompts.

    Raises:
        ValueError: the imagined prompts do not match the original ones, or α is not from 0 to 10. Also raised for
            decoding methods without a second stream (beam search, guidance, assisted decoding, …).
    """
    plain_generate = type(model).generate  # not model.generate, which may be this function
    if imagined_input_ids is None:
        if alpha or imagined_attention_mask is not None:
            raise ValueError("alpha or imagined_attention_mask without imagined_input_ids: there is nothing to debias")
        return plain_generate(model, inputs, **kwargs)
    ratio = DEFAULT_ALPHA if alpha is None else float(alpha)
    if not 0 <= ratio <= _MAX_ALPHA:
        raise ValueError(f"alpha={alpha}: not a debias ratio; expected a number from 0 to {_MAX_ALPHA:g}")
    _refuse_other_ways(model, kwargs)
    mask = _mask(imagined_input_ids, imagined_attention_mask, left=not model.config.is_encoder_decoder)
    originals = kwargs.get("input_ids") if inputs is None else inputs
    ratios = _ratios(ratio, originals, kwargs.get("attention_mask"), imagined_input_ids, mask)
    if any(ratios):
        processors = LogitsProcessorList([_Debias(model, imagined_input_ids, mask, ratios)])
        penalty = _setting(model, kwargs, "repetition_penalty")
        if penalty not in (None, 1):  # transformers would apply it before the subtraction
            processors.append(RepetitionPenaltyLogitsProcessor(float(penalty)))
            kwargs["repetition_penalty"] = 1.0
        kwargs["logits_processor"] = LogitsProcessorList([*processors, *(kwargs.get("logits_processor") or ())])
    return plain_generate(model, inputs, **kwargs)


class _Debias(LogitsProcessor):
    """Runs the imagined prompts in their own cache and subtracts their logits."""

    def __init__(self, model: Any, tokens: torch.Tensor, mask: torch.Tensor, ratios: list[float]) -> None:
        self.model = model
        self.tokens, self.mask = tokens.to(model.device), mask.to(model.device)
        self.ratios = torch.tensor(ratios, device=model.device)[:, None]  # (B, 1)
        self.taken = set(inspect.signature(model.forward).parameters)
        self.encoded: Any = None
        self.cache_name = "cache" if "cache" in self.taken else "past_key_values"  # before transformers 5.24
        self.cache: Any = None
        self.length: int | None = None  # tokens of the sequence at the last step

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """(B, V) logits of the original prompts → debiased ones; `input_ids` ends with the token chosen last."""
        if self.length is None:
            self._start(input_ids, rows=len(scores))
        elif input_ids.shape[1] == self.length + 1:
            self._append(input_ids[:, -1:])
        else:
            raise ValueError("imagined_input_ids: only decoding one token after the other can be debiased")
        self.length = input_ids.shape[1]
        imagined = self._logits().to(scores)
        # A token that is ruled out for the original prompt stays so, whatever the imagined one says.
        return torch.where(scores.isneginf(), scores, scores - self.ratios.to(scores) * imagined)

    def _start(self, input_ids: torch.Tensor, rows: int) -> None:
        copies, rest = divmod(rows, len(self.tokens))  # num_return_sequences
        if rest or not copies:
            raise ValueError(f"{len(self.tokens)} imagined prompts for {rows} rows; expected one for each prompt")
        self.tokens, self.mask, self.ratios = (
            tensor.repeat_interleave(copies, dim=0) for tensor in (self.tokens, self.mask, self.ratios)
        )
        self.positions = (self.mask.cumsum(-1) - 1).clamp(min=0)
        if self.model.config.is_encoder_decoder:
            self.encoded = self.model.get_encoder()(input_ids=self.tokens, attention_mask=self.mask)
            self.tokens = input_ids.to(self.model.device)  # what the decoder begins with

    def _append(self, token: torch.Tensor) -> None:
        self.tokens = token.to(self.model.device)
        if self.encoded is None:
            self.mask = torch.cat([self.mask, self.mask.new_ones(len(self.mask), 1)], dim=1)
            self.positions = self.positions[:, -1:] + 1

    def _logits(self) -> torch.Tensor:
        inputs: dict[str, Any] = {"attention_mask": self.mask, self.cache_name: self.cache, "use_cache": True}
        if self.cache is not None and all(getattr(self.cache, "is_linear", [False])):  # as in Mamba
            inputs["attention_mask"] = None  # is of the input alone
        if self.encoded is not None:
            inputs |= {"encoder_outputs": self.encoded, "decoder_input_ids": self.tokens}
        else:
            inputs |= {"input_ids": self.tokens}
            if "position_ids" in self.taken:
                inputs["position_ids"] = self.positions
        if "logits_to_keep" in self.taken:
            inputs["logits_to_keep"] = 1
        output = self.model(**inputs, return_dict=True)
        self.cache = getattr(output, self.cache_name, None)
        if self.cache is None:
            raise ValueError(f"{type(self.model).__name__} keeps no cache of keys and values to decode debiased with")
        return output.logits[:, -1]


def _refuse_other_ways(model: Any, kwargs: dict[str, Any]) -> None:
    for name, off in _NOT_WITH_IT.items():
        value = _setting(model, kwargs, name)
        if not isinstance(value, int | float) and value is not None:
            raise ValueError(f"{name}: cannot be combined with imagined_input_ids")
        if value not in off:
            raise ValueError(f"{name}={value}: cannot be combined with imagined_input_ids")
    if _setting(model, kwargs, "cache_implementation") == "paged":  # would leave the logits processors out
        raise ValueError("cache_implementation='paged': cannot be combined with imagined_input_ids")


def _setting(model: Any, kwargs: dict[str, Any], name: str) -> Any:
    """What `generate` would take for an option: its own argument, else the configuration's."""
    configurations = (kwargs.get("generation_config"), getattr(model, "generation_config", None))
    values = [kwargs.get(name), *(getattr(configuration, name, None) for configuration in configurations)]
    return next((value for value in values if value is not None), None)


def _mask(tokens: torch.Tensor, mask: torch.Tensor | None, *, left: bool) -> torch.Tensor:
    if tokens.dim() != 2 or not tokens.shape[1]:
        raise ValueError(f"imagined_input_ids of shape {tuple(tokens.shape)}; expected (prompts, tokens)")
    if mask is None:
        if len(tokens) > 1:
            raise ValueError("imagined_attention_mask is missing: of several prompts it says which tokens are padding")
        return torch.ones_like(tokens)
    if mask.shape != tokens.shape:
        raise ValueError(
            f"imagined_attention_mask of shape {tuple(mask.shape)} for imagined_input_ids of {tuple(tokens.shape)}"
        )
    if left and not mask[:, -1].all():
        raise ValueError("imagined_input_ids are padded on the right; expected padding_side='left'")
    return mask.long()


def _ratios(
    alpha: float,
    originals: torch.Tensor | None,
    mask: torch.Tensor | None,
    imagined: torch.Tensor,
    imagined_mask: torch.Tensor,
) -> list[float]:
    """α of each prompt: 0 where there was no context to remove, so that the two prompts are the same."""
    if originals is None or originals.dim() != 2:  # embeddings, say: they cannot be compared
        return [alpha] * len(imagined)
    if len(originals) != len(imagined):
        raise ValueError(f"{len(imagined)} imagined prompts for {len(originals)} original ones; expected one for each")
    mask = torch.ones_like(originals) if mask is None else mask
    pairs = zip(originals, mask, imagined, imagined_mask, strict=True)
    return [0.0 if o[m.bool()].tolist() == i[n.bool()].tolist() else alpha for o, m, i, n in pairs]
