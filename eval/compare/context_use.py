"""What the context is worth to a model: its answers beside those that it gives without the context.

`d2e eval … --without-context` writes the latter. A model that has learnt to neglect the context (PIPER, section 2.2)
answers the same without it and scores the same. On a dataset where every model does so, nothing that makes a model
read can show.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from d2e_sft.util.errors import UserError
from eval.compare.error_patterns import AnswersWithoutContext
from eval.compare.runs import ScoredRun
from eval.run.journal_files import WITH_CONTEXT, WITHOUT_CONTEXT, PassFiles, read_record
from eval.score.metrics import same_answers
from eval.score.predictions import Prediction, SampleKey, read_predictions
from eval.score.statistics import Difference, Interval, bootstrap_average, paired_average


@dataclass(frozen=True)
class ContextUse:
    """One run in one row, as fractions.

    Attributes:
        without: the mean of EM and F1 of the answers without the context, which are decoded plainly.
        gain: what the context adds: the run's answers as they were decoded minus those without, paired. Of a run
            that was decoded debiased it holds what debiasing does, too.
        same: how often an answer was recognised with and without, and was the same.
    """

    without: Interval
    gain: Difference
    same: float


def context_use(
    groups: Sequence[Sequence[Prediction]], without: Mapping[SampleKey, Prediction], *, seed: int = 0
) -> ContextUse:
    """What the context adds to one list of predictions, or on average to several.

    A sample that has no context counts as answered the same, if an answer was recognised.
    """
    pairs = [[(p, without.get((p.dataset, p.id), p)) for p in group] for group in groups]
    before = [[other.mean for _, other in group] for group in pairs]
    after = [[one.mean for one, _ in group] for group in pairs]
    same = [sum(_same(*pair) for pair in group) / len(group) for group in pairs]
    return ContextUse(
        bootstrap_average(before, seed=seed), paired_average(before, after, seed=seed), sum(same) / len(same)
    )


def _same(one: Prediction, other: Prediction) -> bool:
    return one.parsed and other.parsed and same_answers(one.answer, other.answer)


WITHOUT_CONTEXT_FILE = f"{WITHOUT_CONTEXT}.jsonl"


def asked_without_context(run: ScoredRun) -> bool:
    """Whether the run's samples were asked without their contexts, too."""
    return (run.folder / WITHOUT_CONTEXT_FILE).is_file()


def read_without_context(
    run: ScoredRun, samples: Collection[Prediction], file: Path | None = None, *, noun: str = "samples"
) -> dict[SampleKey, Prediction]:
    """A run's predictions without the contexts, by dataset and id.

    Args:
        samples: those that must be among them, unless they have no context.
        file: in the format of predictions.jsonl; None takes `without_context.jsonl` beside the run's predictions.
        noun: what an error calls the samples.

    Raises:
        UserError: the file is damaged, or lacks one of the samples; says which command writes it.
    """
    source = run.folder / WITHOUT_CONTEXT_FILE if file is None else file
    answers = {(p.dataset, p.id): p for p in read_predictions(source)}
    lacking = [p for p in samples if p.context.strip() and (p.dataset, p.id) not in answers]
    if lacking:
        raise UserError(
            f"{source}: holds no answer for {len(lacking)} of {len(samples)} {noun}, such as "
            f"{lacking[0].id!r} of {lacking[0].dataset!r}; expected the samples of {run.folder / 'predictions.jsonl'}",
            remedy=f"{command_without_context(run)} --overwrite",
        )
    return answers


def answers_without_context(
    run: ScoredRun, wrong: Sequence[Prediction], file: Path | None = None
) -> AnswersWithoutContext:
    """The answers to compare a run's wrong ones with.

    Args:
        file: as for `read_without_context`.

    Raises:
        UserError: there is no such file, or it lacks a wrong prediction's sample; says which command writes it.
    """
    source = run.folder / WITHOUT_CONTEXT_FILE if file is None else file
    if not source.is_file():
        raise UserError(
            f"{source}: no such file; the rule needs what the model answers without the context",
            remedy=f"{command_without_context(run)}\n  or name a judge: --judge openai or local",
        )
    predictions = read_without_context(run, wrong, source, noun="wrong predictions")
    return {key: prediction.answer for key, prediction in predictions.items()}


def command_without_context(run: ScoredRun) -> str:
    """The `d2e eval` call that asks the run's model again, on the same samples, without their contexts."""
    scores = run.scores
    file = Path(scores.bench.file)
    bench = file.parent if file.stem == "test" else file
    arguments = ["d2e", "eval", scores.model, "--bench", str(bench)]
    if scores.setting != "zero_shot":
        arguments += ["--setting", scores.setting]
    if scores.answer != "generate":
        arguments += ["--answer", scores.answer, "--normalise", scores.normalise or "none"]
    if scores.prompt_set != "default":
        arguments += ["--prompt-set", scores.prompt_set_given or scores.prompt_set]
    if scores.subset is not None:
        arguments += [
            "--max-samples",
            str(scores.subset.get("per_group")),
            "--seed",
            str(scores.subset.get("seed", 0)),
        ]
    if scores.max_new_tokens is not None:
        arguments += ["--max-new-tokens", str(scores.max_new_tokens)]
    arguments += _engine_arguments(run)
    if str(run.path) != scores.model:
        arguments += ["--out", str(run.path)]
    return shlex.join([*arguments, "--without-context"])


def _engine_arguments(run: ScoredRun) -> list[str]:
    """Who decoded, and what else the two passes must have in common."""
    engine = (run.scores.engine or "transformers").split(", ")[-1]  # the last session's
    record = read_record(PassFiles(run.folder, WITH_CONTEXT)) or {"fingerprint": {}}
    arguments = [] if engine == "transformers" else ["--engine", engine]
    if dtype := record["fingerprint"].get("dtype"):
        arguments += ["--dtype", str(dtype)]
    if engine == "openai":
        if endpoint := run.scores.environment.get("endpoint"):
            arguments += ["--base-url", str(endpoint)]
        if tokenizer := record["fingerprint"].get("tokenizer"):
            arguments += ["--tokenizer", str(tokenizer)]
        temperature = record["fingerprint"].get("temperature", 0)
        if temperature != 0:
            arguments += ["--temperature", "default" if temperature is None else f"{temperature:g}"]
    return arguments
