"""How compared runs were decoded: where they differ, and what their models answer without the contexts.

A difference may be what is compared, such as two values of α, or an accident, such as two dtypes. `compare`, `table`,
`report` and `sweep` name it in a line, and refuse it with `--strict`.

`d2e eval … --without-context` writes the answers without the contexts. A model that does not use the context gives the
same ones. If every model does so on a dataset, the dataset cannot show which model uses the context.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from d2e_sft.config.decoding import describe
from d2e_sft.model.storage.seal import SEAL_FILE, read_seal
from d2e_sft.util.errors import UserError
from eval.compare.runs import MeasuredRun, ScoredRun
from eval.run.journal import WITH_CONTEXT, WITHOUT_CONTEXT, PassFiles, read_record
from eval.score.predictions import Prediction, SampleKey, read_predictions
from eval.score.scores import RunScores

WITHOUT_CONTEXT_FILE = f"{WITHOUT_CONTEXT}.jsonl"
# What a fingerprint has, and what it leaves out where it is as usual.
_KEYS = (
    *("answer", "max_new_tokens", "temperature", "seed", "dtype", "view", "form", "setting", "prompt_set"),
    *("demonstrations", "cut_to", "bench", "subset"),
)
_USUAL = {"answer": "generate", "temperature": 0.0, "form": "chat", "dtype": "the model's own"}
_MOST_NAMES = 3
_SHA256 = re.compile(r"\b[0-9a-f]{64}\b")


@dataclass(frozen=True)
class DecodingDifferences:
    """Key → label of a run → value, for keys in which runs differ; labels of runs without a record."""

    differs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    unknown: Sequence[str] = ()

    def __bool__(self) -> bool:
        return bool(self.differs or self.unknown)

    def line(self) -> str:
        """Return the differences in a line, empty without any."""
        parts = []
        for key, values in self.differs.items():
            by_value: dict[str, list[str]] = {}
            for label, value in values.items():
                by_value.setdefault(value, []).append(label)
            parts.append(f"{key} " + ", ".join(f"{value} ({_named(labels)})" for value, labels in by_value.items()))
        lines = [f"Decoded differently: {'; '.join(parts)}."] if parts else []
        lines += [f"Decoding unknown: {_named(self.unknown)}."] if self.unknown else []
        return " ".join(lines)

    def refuse(self) -> None:
        """Raise UserError for any difference, or anything unknown."""
        if self:
            raise UserError(
                f"--strict: {self.line()} Expected the same decoding of all runs",
                remedy="decode them with the same options of d2e eval, or drop --strict",
            )


ALIKE = DecodingDifferences()


def _named(labels: Sequence[str]) -> str:
    return ", ".join(labels) if len(labels) <= _MOST_NAMES else f"{len(labels)} runs"


def decoding_differences(results: Mapping[str, tuple[Path, RunScores | Mapping[str, Any]]]) -> DecodingDifferences:
    """Compare how results were decoded, given by label as their folder and the content of `scores.json`."""
    if len(results) < 2:
        return ALIKE
    facts = {label: _recorded(*result) for label, result in results.items()}
    differs = {}
    for key in dict.fromkeys(key for recorded in facts.values() for key in recorded):
        values = {label: recorded[key] for label, recorded in facts.items() if key in recorded}
        if len(set(values.values())) > 1:
            differs[key] = values
    return DecodingDifferences(differs, [label for label, recorded in facts.items() if not recorded])


def decoding_of_runs(runs: Sequence[ScoredRun | MeasuredRun]) -> DecodingDifferences:
    """Compare the runs; with seeds their groups by the first seed, and the seeds of each group."""
    first: dict[str, tuple[Path, RunScores | Mapping[str, Any]]] = {}
    for run in runs:
        first.setdefault(run.label, (run.folder, run.scores))
    result = decoding_differences(first)
    for label in first:
        seeds = {f"{label}, seed {run.seed}": (run.folder, run.scores) for run in runs if run.label == label}
        if group := decoding_differences(seeds):
            differs = {key: values for key, values in group.differs.items() if key != "bench"}  # samples of their own
            others = [name for name in result.unknown if name != label]  # the label stands for its seeds
            result = DecodingDifferences({**result.differs, **differs}, [*others, *group.unknown])
    return result


def _content(scores: RunScores | Mapping[str, Any]) -> Mapping[str, Any]:
    return scores if isinstance(scores, Mapping) else vars(scores)


def _record(folder: Path) -> dict[str, Any] | None:
    passes = [file.name.removesuffix(".decoding.json") for file in sorted(folder.glob("*.decoding.json"))]
    return next((read_record(PassFiles(folder, name)) for name in passes if name != WITHOUT_CONTEXT), None)


def _recorded(folder: Path, scores: RunScores | Mapping[str, Any]) -> dict[str, str]:
    """Return what the results in a folder say of their decoding; nothing of answers that were only scored."""
    record = _record(folder)
    if record is None:
        return {}
    content, printed = _content(scores), record["fingerprint"]
    facts = {"decoding": describe(printed)} | {key: printed.get(key) or _USUAL.get(key) for key in _KEYS}
    facts |= {key: content.get(key) for key in ("normalise", "options")}
    facts |= {"version": record.get("environment", {}).get("d2e_sft")}
    facts |= {f"weights of {content['model']}": printed.get("model")}
    model = Path(content["model"])
    if (model / SEAL_FILE).is_file():  # of an adapter: the files of the base that it was trained on
        bases = read_seal(model).depends_on.items()
        facts |= {f"weights of the base {name}": ", ".join(_SHA256.findall(str(sums))) for name, sums in bases}
    return {key: _shown(value) for key, value in facts.items()}


def _shown(value: Any) -> str:
    text = "none" if value is None else value if isinstance(value, str) else json.dumps(value, default=str)
    return re.sub(r"([0-9a-f]{8})[0-9a-f]{24,}", r"\1…", text)


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
