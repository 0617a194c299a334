"""The instructions that the models were given: the system message of each format, in the wording of the evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from d2e_sft.data.prompts import PromptSet, load_prompt_set
from d2e_sft.util.errors import UserError
from eval.compare.runs import ScoredRun
from eval.run.journal_files import WITH_CONTEXT, PassFiles, read_record


@dataclass(frozen=True)
class Instruction:
    """One wording of a format's instruction, and the runs that were given it."""

    format: str
    text: str
    labels: tuple[str, ...]


def instructions(runs: Sequence[ScoredRun]) -> list[Instruction]:
    """Each format's instructions; a run whose prompt set is not here any more, or has changed, is left out.

    Raises:
        UserError: a run's record of its decoding is damaged.
    """
    given: dict[tuple[str, str], list[str]] = {}
    formats = dict.fromkeys(prediction.format for prediction in runs[0].predictions.values())
    for run in runs:
        wording = _wording(run)
        if wording is None:
            continue
        prompts = getattr(wording, run.scores.setting) or wording.zero_shot
        for fmt in formats:
            if fmt in prompts:
                given.setdefault((fmt, prompts[fmt].system), []).append(run.label)
    return [Instruction(fmt, text, tuple(labels)) for (fmt, text), labels in given.items()]


def _wording(run: ScoredRun) -> PromptSet | None:
    name = run.scores.prompt_set_given or run.scores.prompt_set
    record = read_record(PassFiles(run.folder, WITH_CONTEXT))
    try:
        prompts = load_prompt_set(name)
        digest = prompts.digest(run.scores.setting)
    except UserError:
        return None  # a set of one's own that is no longer where it was
    used = str((record or {"fingerprint": {}})["fingerprint"].get("prompt_set", ""))
    return prompts if not used or used.endswith(digest) else None
