"""What outputs depend on, without engine, batch size and processes; a check that different ones are not mixed."""

from pathlib import Path
from typing import Any

from d2e_sft.config.decoding import RECORDED, parse_decoder
from d2e_sft.config.functions import code_of
from d2e_sft.util.errors import UserError
from eval.run.options import EvalConfig
from eval.run.task import Task

Fingerprint = dict[str, Any]
# The pass without context belongs to predictions of any decoder and length rule.
_DIFFERS_BETWEEN_PASSES = frozenset({*RECORDED, "decoder_code", "view", "cut_to"})
# Keys that are reported by another key's value, which is not compared.
_REPORTED_AS = {"prompts": "asked"}
# The other keys are options of the command line.
_NAMES = {
    "model": "the model",
    "view": "the view",
    "decoder_code": "the file of the decoder",
    "prompt_set": "the prompt set",
    "demonstrations": "the demonstrations",
    "bench": "the benchmark's file",
    "subset": "the subset (--max-samples)",
    "prompts": "the prompts",
    "cut_to": "the length that contexts were cut to",
}


def fingerprint_of(task: Task, identity: str, config: EvalConfig) -> Fingerprint:
    """Everything that the outputs of a task depend on, as flat JSON; the task's `about` says which prompts they are.

    `identity` is that of `d2e_sft.model.storage.folder`; for an endpoint, its address and model.
    """
    options, decoding, endpoint = config.options, task.decoding, config.engine == "openai"
    likelihood: Fingerprint = {"answer": "likelihood"} if task.likelihood else {}
    if likelihood and endpoint:
        likelihood["tokenizer"] = options.tokenizer
    decoder = parse_decoder(decoding.decoder)[0]
    cut_to = options.vllm.get("max_model_len") if options.overlong == "truncate_context" else None
    return {
        "model": identity,
        "view": task.view,
        **({} if config.form == "chat" else {"form": config.form}),
        **decoding.record(),
        **({"decoder_code": code_of(decoder, "decoder")} if ":" in decoder else {}),
        **likelihood,
        "max_new_tokens": None if likelihood else decoding.max_new_tokens,
        "dtype": options.dtype,
        "temperature": decoding.temperature or (options.endpoint.temperature if endpoint else 0.0),
        "seed": decoding.seed if decoding.temperature > 0 else None,
        **({} if cut_to is None else {"cut_to": cut_to}),
        **task.about,
    }


def check_fingerprint(before: Fingerprint, now: Fingerprint, file: Path, *, companion: bool = False) -> None:
    """Check that outputs on disk belong to the same pass as new ones; UserError with everything that differs.

    With `companion` they are of the other pass of the same evaluation, with or without the context.
    """
    changed = []
    for key in {**before, **now}:
        if (companion and key in _DIFFERS_BETWEEN_PASSES) or key in _REPORTED_AS.values():
            continue
        if before.get(key) != now.get(key):
            reported = _REPORTED_AS.get(key, key)
            shown = reported if reported in before and before[reported] != now.get(reported) else key
            name = _NAMES.get(key, f"--{key.replace('_', '-')}")
            changed.append(f"{name}: {_shown(before.get(shown))} → {_shown(now.get(shown))}")
    if changed:
        raise UserError(
            "\n  ".join([f"{file}: was decoded by another model or with other options", *changed]),
            remedy="give the options of that decoding, keep both with another --out, or remove it with --overwrite",
        )


def _shown(value: Any) -> str:
    text = "none" if value is None else str(value)
    return f"{text[:60]}…" if len(text) > 60 else text
