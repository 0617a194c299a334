"""Generated answers of held-out rows: for `compute_metrics`, `predict`, and EM and F1 during training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from accelerate.utils import gather_object
from transformers.integrations import is_deepspeed_zero3_enabled

from d2e_sft.data.prompts import PromptSet, load_prompt_set
from d2e_sft.data.sample import EventSample
from d2e_sft.decoding import DecodingConfig, answer_samples
from d2e_sft.util.answers import exact_match, token_f1
from d2e_sft.util.terminal import quietly


def decode(trainer: Any, samples: Sequence[EventSample], decoding: DecodingConfig) -> list[str]:
    """Decode samples with the model of a `D2ETrainer`, in the precision of training; one text per sample.

    An evaluation decodes a sample once, although `compute_metrics` and `SamplePredictions` may both ask for it.
    """
    known = trainer.held_out.decoded
    new = [sample for sample in samples if (id(sample), decoding) not in known]
    known.update(zip(((id(sample), decoding) for sample in new), _decoded(trainer, new, decoding), strict=True))
    return [known[id(sample), decoding] for sample in samples]


def _decoded(trainer: Any, samples: Sequence[EventSample], decoding: DecodingConfig) -> list[str]:
    """Decode samples, in their order.

    Processes share the samples and exchange their texts. Under ZeRO-3 and FSDP each decodes all of them in step, since
    weights are gathered from all.
    """
    args, accelerator, model = trainer.args, trainer.accelerator, trainer.model
    processes, rank = accelerator.num_processes, accelerator.process_index
    if trainer.is_fsdp_enabled or is_deepspeed_zero3_enabled():
        processes, rank = 1, 0
    wording = load_prompt_set(args.prompt_set, args.form)
    with trainer.compute_loss_context_manager(), quietly(args.disable_tqdm):
        mine = answer_samples(
            model,
            trainer.processing_class,
            samples[rank::processes],
            decoding,
            prompt_set=wording,
            max_length=args.max_length,
        )
    # ZeRO-3 keeps weights that it prefetched for a next token.
    release = getattr(trainer.model_wrapped, "empty_partition_cache", None)
    if release is not None:
        release()
    if processes == 1:
        return mine
    texts = [""] * len(samples)
    for place, part in enumerate(gather_object([mine])):
        texts[place::processes] = part
    return texts


@dataclass(frozen=True)
class Answers:
    """The answers of samples, in their order.

    Attributes:
        texts: what the model answers, without the response form ("The answer is:").
        references: the accepted answers of each sample; a choice also with its letter.
    """

    texts: list[str]
    references: list[list[str]]

    @classmethod
    def generated(cls, trainer: Any, samples: Sequence[EventSample]) -> Self:
        """Decode samples with the model of a `D2ETrainer`, by its `decoding_alpha` and `max_new_tokens`."""
        args = trainer.args
        alpha = args.d2e.effective_alpha if args.decoding_alpha is None else args.decoding_alpha
        texts = decode(trainer, samples, DecodingConfig(alpha=alpha, max_new_tokens=args.max_new_tokens))
        return cls.read(texts, samples, load_prompt_set(args.prompt_set, args.form))

    @classmethod
    def read(cls, texts: Sequence[str], samples: Sequence[EventSample], wording: PromptSet) -> Self:
        """Find the answers in decoded texts, worded by a prompt set."""
        said, references = [], []
        for text, sample in zip(texts, samples, strict=True):
            start, response = wording.answer_start(sample), wording.response(sample)
            form = response[:start].strip()
            said.append((text.rpartition(form)[2] if form else text).strip())
            references.append(list(dict.fromkeys([response[start:], *sample.answers])))
        return cls(said, references)

    def scores(self) -> dict[str, float]:
        """The mean exact match (`em`) and token-level F1 (`f1`), from 0 to 1."""
        pairs = list(zip(self.texts, self.references, strict=True))
        measures = {"em": exact_match, "f1": token_f1}
        return {name: sum(score(*pair) for pair in pairs) / len(pairs) for name, score in measures.items()}
