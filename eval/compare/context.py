"""The answers that a run's model gives without the contexts, which `d2e eval … --without-context` writes.

A model that does not use the context gives the same answers without it. If every model does so on a
dataset, the dataset cannot show which model uses the context.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection
from pathlib import Path

from d2e_sft.util.errors import UserError
from eval.compare.runs import ScoredRun
from eval.run.journal import WITH_CONTEXT, WITHOUT_CONTEXT, PassFiles, read_record
from eval.score.predictions import Prediction, SampleKey, read_predictions

WITHOUT_CONTEXT_FILE = f"{WITHOUT_CONTEXT}.jsonl"


def without_context(run: ScoredRun) -> dict[SampleKey, Prediction] | None:
    """A run's predictions without the contexts, None if not asked; UserError if the file is damaged or incomplete."""
    is_asked = (run.folder / WITHOUT_CONTEXT_FILE).is_file()
    return read_without_context(run, run.predictions.values()) if is_asked else None


def read_without_context(
    run: ScoredRun, samples: Collection[Prediction], file: Path | None = None, *, noun: str = "samples"
) -> dict[SampleKey, Prediction]:
    """Read a run's predictions without the contexts, by dataset and id.

    Args:
        samples: predictions that need a counterpart, unless they have no context.
        file: None means `without_context.jsonl` in the run's folder.
        noun: what the samples are called in an error.

    UserError, with the command that writes the file, if it is missing, damaged or lacks one of the samples.
    """
    source = run.folder / WITHOUT_CONTEXT_FILE if file is None else file
    if not source.is_file():
        raise UserError(
            f"{source}: no such file; the rule needs what the model answers without the context",
            remedy=f"{command_without_context(run)}\n  or name a judge: --judge openai or local",
        )
    answers = {(p.dataset, p.id): p for p in read_predictions(source, foreign=file is not None)}
    lacking = [p for p in samples if p.context.strip() and (p.dataset, p.id) not in answers]
    if lacking:
        raise UserError(
            f"{source}: holds no answer for {len(lacking)} of {len(samples)} {noun}, such as "
            f"{lacking[0].id!r} of {lacking[0].dataset!r}; expected the samples of {run.folder / 'predictions.jsonl'}",
            remedy=f"{command_without_context(run)} --overwrite",
        )
    return answers


def command_without_context(run: ScoredRun) -> str:
    """The `d2e eval` call that asks the run's model the same samples without their contexts."""
    scores, file = run.scores, Path(run.scores.bench.file)
    fingerprint = (read_record(PassFiles(run.folder, WITH_CONTEXT)) or {"fingerprint": {}})["fingerprint"]
    engine = (scores.engine or "transformers").split(", ")[-1]  # the last session's
    generates, subset = scores.answer == "generate", scores.subset or {}
    wording = scores.prompt_set_given or scores.prompt_set
    options: dict[str, object] = {
        "--bench": file.parent if file.stem == "test" else file,
        "--setting": None if scores.setting == "zero_shot" else scores.setting,
        "--form": None if scores.form == "chat" else scores.form,
        "--answer": None if generates else scores.answer,
        "--normalise": None if generates else scores.normalise or "none",
        "--prompt-set": None if wording == "default" else wording,
        "--max-samples": subset.get("per_group"),
        "--seed": subset.get("seed", 0) if subset else None,
        "--max-new-tokens": scores.max_new_tokens,
        "--engine": None if engine == "transformers" else engine,
        "--dtype": fingerprint.get("dtype") or None,
    }
    if engine == "openai":
        options["--base-url"] = scores.environment.get("endpoint") or None
        options["--tokenizer"] = fingerprint.get("tokenizer") or None
        temperature = fingerprint.get("temperature", 0)
        if temperature != 0:
            options["--temperature"] = "default" if temperature is None else f"{temperature:g}"
    if str(run.path) != scores.model:
        options["--out"] = run.path
    arguments = [text for name, value in options.items() if value is not None for text in (name, str(value))]
    return shlex.join(["d2e", "eval", scores.model, *arguments, "--without-context"])
