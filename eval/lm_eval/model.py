"""`d2e`, a model of lm-evaluation-harness that decodes and scores debiased.

A task's document gives its prompt without context in the fields `prompt` and `prompt_without_context`. The imagined
prompt is the harness's own prompt with the first replaced by the second, so demonstrations and chat templates stay.
Documents without these fields are decoded plainly, and so are whole texts (perplexity), which have no prompt.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from d2e_sft.config.decoding import describe, given_decoder
from d2e_sft.data.chat_template import end_of_turn_id, rendered
from d2e_sft.decoding import DecodingConfig, OptionScore, PromptPair, generate, score, stop_token_ids
from d2e_sft.decoding.decoders import decoder_of
from d2e_sft.decoding.pairs import TokenPair
from d2e_sft.model.layers import ready_to_decode
from d2e_sft.model.loading import check_answer_fits, load_model, position_limit
from d2e_sft.util.errors import UserError
from d2e_sft.util.progress import Progress

_LOG = logging.getLogger(__name__)
_KNOWN = {"until", "do_sample", "temperature", "top_p", "top_k", "max_gen_toks", "max_tokens", "max_new_tokens"}


@dataclass(frozen=True)
class ContinuationEncoder:
    """Tokenises prompts and the texts after them like the harness's `hf` model; `limit` are the model's positions."""

    tokenizer: Any
    limit: int | None

    @property
    def first(self) -> int:
        """The token before a text without a prompt: BOS, else EOS."""
        bos = self.tokenizer.bos_token_id
        token: int = self.tokenizer.eos_token_id if bos is None else bos
        return token

    def encode(self, original: str, imagined: str, text: str) -> TokenPair:
        """Encode a prompt in both views and the text after it, its option; blanks between them belong to the text.

        A prompt that is too long loses its beginning (`truncated`). UserError for a text that is too long, or has no
        token.
        """
        if original:
            end = len(original.rstrip())
            text, original = original[end:] + text, original[:end]
        prompt = self.tokens(original) if original else [self.first]
        tokens = self.tokens(original + text)[len(prompt) :] if original else self.tokens(text, special=False)
        if not original and tokens[:1] == prompt:
            tokens = tokens[1:]  # the text has its own BOS token
        if not tokens or (self.limit is not None and len(tokens) > self.limit):
            problem = "has no token" if not tokens else f"has {len(tokens)} tokens, and the model takes {self.limit}"
            raise UserError(f"log-likelihood of {text[:60]!r}: {problem}; expected at least one, and no more than fit")
        without = imagined.rstrip()
        imagined_tokens = self.tokens(without) if without else [self.first]
        return self._fitted(prompt, imagined_tokens, len(tokens) - 1, [tokens])  # the last one is not read

    def encode_prompt(self, original: str, imagined: str, new_tokens: int) -> TokenPair:
        """Encode a prompt in both views, each without the beginning that leaves no room for an answer."""
        check_answer_fits(self.limit, new_tokens, "max_gen_toks")
        return self._fitted(self.tokens(original), self.tokens(imagined), new_tokens)

    def _fitted(
        self, original: list[int], imagined: list[int], taken: int, options: Sequence[list[int]] = ()
    ) -> TokenPair:
        room = max(len(original), len(imagined)) if self.limit is None else self.limit - taken
        return PromptPair(original[-room:], imagined[-room:], options, truncated=len(original) > room)

    def windows(self, text: str) -> list[TokenPair]:
        """Split a text into pieces that fit the model, each after at least the token before it."""
        tokens = self.tokens(text)
        pieces = get_rolling_token_windows(tokens, self.first, self.limit or max(len(tokens), 1), 1)
        return [PromptPair(prompt, prompt, [rest]) for prompt, rest in map(make_disjoint_window, pieces)]

    def tokens(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of a text, with the special tokens that it lacks."""
        start = self.tokenizer.bos_token or self.tokenizer.eos_token
        # A chat template writes the BOS token.
        special = special and not (start and text.startswith(start))
        ids: list[int] = self.tokenizer(text, add_special_tokens=special)["input_ids"]
        return ids


@register_model("d2e")
class D2ELM(LM):
    """Debiased decoding of `generate_until` tasks, greedy or sampled, and debiased log-likelihoods of the others.

    Args:
        pretrained: a model's name, as for `d2e eval`.
        alpha: the debias ratio of the decoder `d2e`; None: 0.5.
        decoder: `NAME` or `NAME:KEY=VALUE:KEY=VALUE`, as for `d2e eval --decoder`; the harness splits at commas.
        max_gen_toks: longest answer, unless a task sets it.
        device: `cuda:1`, `cpu`, …; always the CPU without CUDA.

    UserError if there is no such model, an option is wrong, or the model is an encoder-decoder.
    """

    def __init__(
        self,
        pretrained: str,
        alpha: float | None = None,
        decoder: str | None = None,
        dtype: str = "float32",
        batch_size: int | str = 16,
        max_gen_toks: int = 64,
        device: str | None = None,
        seed: int = 0,
        **unknown: Any,
    ) -> None:
        super().__init__()
        unknown.pop("max_batch_size", None)  # the harness always passes it
        if unknown:
            known = "pretrained, alpha, decoder, dtype, batch_size, max_gen_toks, device, seed"
            raise UserError(f"--model_args {', '.join(sorted(unknown))}: unknown to model 'd2e'; expected {known}")
        self.how = DecodingConfig(**given_decoder(decoder, None if alpha is None else float(alpha), 0.5))
        decoder_of(self.how)  # imports a custom function before the model is loaded
        if not str(batch_size).isdigit():
            raise UserError(f"--batch_size {batch_size}: expected a number; model 'd2e' does not find one by itself")
        loaded = load_model(pretrained, dtype=dtype)
        if loaded.model.config.is_encoder_decoder:
            raise UserError(
                f"pretrained={pretrained}: an encoder-decoder model; expected a causal one", "use `d2e eval`"
            )
        # The harness asks for cuda:0 by default, even without CUDA.
        self._device = torch.device((device or "cuda") if torch.cuda.is_available() else "cpu")
        self.model = ready_to_decode(loaded.model, self._device)
        self.tokenizer = loaded.tokenizer
        self.encoder = ContinuationEncoder(self.tokenizer, position_limit(self.model.config))
        self.name = pretrained
        self.batch_size = int(batch_size)
        self.max_gen_toks = int(max_gen_toks)
        self.seed = int(seed)

    @property
    def tokenizer_name(self) -> str:
        return self.name.replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        return self.tokenizer.chat_template if chat_template else ""

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        options = {"add_generation_prompt": add_generation_prompt, "continue_final_message": not add_generation_prompt}
        text: str = rendered(self.tokenizer, chat_history, **options)
        return text

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """The answer to each request's prompt, cut at its first stop text; a prompt too long loses its beginning."""
        answers = [""] * len(requests)
        by_options: dict[str, list[int]] = {}
        for i, request in enumerate(requests):
            by_options.setdefault(repr(sorted(request.args[1].items(), key=lambda item: item[0])), []).append(i)
        self._warn_of_plain(sum(self._imagined(request) == request.args[0] for request in requests), len(requests))
        with Progress(
            total=len(requests), desc=f"decoding {describe(self.how.record())}", disable=disable_tqdm
        ) as bar:
            for members in by_options.values():
                self._decode([requests[i] for i in members], members, answers, bar)
        return answers

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """The log-probability of each request's continuation, and whether greedy decoding would write it.

        It is debiased if the document has a context. Prompts that are too long lose their beginning.
        """
        pairs = [
            replace(
                self.encoder.encode(request.args[0], self._imagined(request), request.args[1]), name=_name(request)
            )
            for request in Progress(requests, desc="tokenising", disable=disable_tqdm)
        ]
        self._warn_of_plain(sum(pair.original == pair.imagined for pair in pairs), len(pairs))
        _warn_of_cut(pairs)
        scores = self._score(pairs, f"log-likelihoods, decoded {describe(self.how.record())}", disable_tqdm)
        answers = [(score.logprob, score.greedy) for score in scores]
        for request, answer in zip(requests, answers, strict=True):
            self.cache_hook.add_partial("loglikelihood", request.args, answer)
        return answers

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """The log-probability of each request's whole text, always plain, as it has no prompt."""
        windows = [self.encoder.windows(request.args[0]) for request in requests]
        self._warn_of_plain(len(requests), len(requests))
        scores = iter(self._score([pair for pairs in windows for pair in pairs], "log-likelihoods", disable_tqdm))
        sums = [sum(next(scores).logprob for _ in pairs) for pairs in windows]
        for request, total in zip(requests, sums, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return sums

    def _score(self, items: Sequence[TokenPair], title: str, disable_tqdm: bool) -> list[OptionScore]:
        """Score pairs with one option each; those with the same prompts share a forward."""
        by_prompt: dict[tuple[tuple[int, ...], ...], list[int]] = {}
        for place, pair in enumerate(items):
            by_prompt.setdefault((tuple(pair.original), tuple(pair.imagined or ())), []).append(place)
        groups = list(by_prompt.values())
        pairs = [replace(items[places[0]], options=[items[place].options[0] for place in places]) for places in groups]
        results: dict[int, OptionScore] = {}
        with Progress(total=len(items), desc=title, disable=disable_tqdm) as bar:
            for index, scores in score(self.model, pairs, replace(self.how, batch_size=self.batch_size)):
                results.update(zip(groups[index], scores, strict=True))
                bar.update(len(scores))
        return [results[place] for place in range(len(items))]

    def _warn_of_plain(self, plain: int, count: int) -> None:
        if self.how.needs_imagined and plain:
            _LOG.warning("%s of %s prompts have no context to remove and are decoded plainly", plain, count)

    def _decode(self, requests: list[Instance], places: list[int], answers: list[str], bar: Any) -> None:
        options = dict(requests[0].args[1])
        unknown = sorted(set(options) - _KNOWN)
        if unknown:
            raise UserError(
                f"generation_kwargs {', '.join(unknown)}: unknown to model 'd2e'; expected {sorted(_KNOWN)}"
            )
        until = options.get("until") or []
        stop_strings = [until] if isinstance(until, str) else list(until)
        lengths = (options.get(name) for name in ("max_gen_toks", "max_new_tokens", "max_tokens"))
        has_template = bool(getattr(self.tokenizer, "chat_template", None))
        sampled = options.get("do_sample", float(options.get("temperature", 0)) > 0)

        new_tokens = next((int(length) for length in lengths if length is not None), self.max_gen_toks)
        pairs = [
            replace(
                self.encoder.encode_prompt(request.args[0], self._imagined(request), new_tokens),
                group=request.task_name,
                name=_name(request),
            )
            for request in requests
        ]
        _warn_of_cut(pairs)
        decoding = replace(
            self.how,
            batch_size=self.batch_size,
            max_new_tokens=new_tokens,
            stop_strings=stop_strings,
            temperature=float(options.get("temperature") or 1.0) if sampled else 0.0,
            top_p=float(options.get("top_p", 1.0)),
            top_k=int(options.get("top_k", 0)),
            seed=self.seed,
        )
        stop_ids = stop_token_ids(self.model, end_of_turn_id(self.tokenizer) if has_template else None)
        for output in generate(self.model, self.tokenizer, pairs, decoding, stop_ids=stop_ids):
            if output.ended:
                text, index = output.text, output.index
                answers[places[index]] = min((text.split(stop)[0] for stop in stop_strings), key=len, default=text)
                self.cache_hook.add_partial("generate_until", requests[index].args, answers[places[index]])
                bar.update()

    def _imagined(self, request: Instance) -> str:
        """The request's prompt without its document's context; unchanged if the document does not give it."""
        prompt: str = request.args[0]
        # The harness strips the messages of a conversation.
        full, without = (request.doc.get("prompt") or "").strip(), request.doc.get("prompt_without_context")
        before, match, after = prompt.rpartition(full) if full and without is not None else ("", "", "")
        return f"{before}{without.strip()}{after}" if match else prompt


def _warn_of_cut(pairs: Sequence[TokenPair]) -> None:
    if cut := sum(pair.truncated for pair in pairs):
        _LOG.warning("%s of %s prompts are too long for the model and were cut at their beginning", cut, len(pairs))


def _name(request: Instance) -> str:
    return f"document {request.doc_id} of {request.task_name!r}"
