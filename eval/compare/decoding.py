"""Where the decoding of compared runs differs, as far as their results record it.

A difference may be what is compared, such as two values of α, or an accident, such as two dtypes. `compare`, `table`,
`report` and `sweep` name it in a line, and refuse it with `--strict`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from d2e_sft.config.decoding import describe
from d2e_sft.model.storage.seal import SEAL_FILE, read_seal
from d2e_sft.util.errors import UserError
from eval.compare.runs import MeasuredRun, ScoredRun
from eval.run.journal import WITHOUT_CONTEXT, PassFiles, read_record
from eval.score.scores import RunScores

# What is compared, and the values that a record leaves out.
_KEYS = (
    *("decoding", "answer", "normalise", "max_new_tokens", "temperature", "seed", "dtype", "view", "form", "setting"),
    *("prompt_set", "demonstrations", "cut_to", "bench", "subset", "options", "version"),
)
_LEFT_OUT = {"answer": "generate", "temperature": 0.0, "form": "chat"}
_FROM_SCORES = ("answer", "normalise", "max_new_tokens", "form", "setting", "options")  # keys that scores.json has too
_MOST_NAMES = 3


@dataclass(frozen=True)
class DecodingDifferences:
    """Key → label of a run → value, for keys in which runs differ; label → keys that a run's results do not record."""

    differs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    unknown: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.differs or self.unknown)

    def line(self) -> str:
        """Return the differences in a line, empty without any."""
        parts = []
        for key, values in self.differs.items():
            found: dict[str, list[str]] = {}
            for label, value in values.items():
                found.setdefault(value, []).append(label)
            parts.append(f"{key} " + ", ".join(f"{value} ({_named(labels)})" for value, labels in found.items()))
        lines = [f"Decoded differently: {'; '.join(parts)}."] if parts else []
        if self.unknown:
            by_keys: dict[str, list[str]] = {}
            for label, keys in self.unknown.items():
                by_keys.setdefault(", ".join(keys) or "everything", []).append(label)
            lacking = "; ".join(f"{keys} of {_named(labels)}" for keys, labels in by_keys.items())
            lines.append(f"Decoding unknown: {lacking}.")
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
    content = {
        label: (folder, scores.model_dump(exclude_unset=True) if isinstance(scores, RunScores) else scores)
        for label, (folder, scores) in results.items()
    }
    facts = {label: _recorded(*own) for label, own in content.items()}
    if len(facts) < 2:
        return ALIKE
    differs = {}
    for key in dict.fromkeys([*_KEYS, *(key for own in facts.values() for key in own)]):
        values = {label: own[key] for label, own in facts.items() if key in own}
        if len(set(values.values())) > 1:
            differs[key] = values
    known = {key for own in facts.values() for key in own} & {*_KEYS}
    lacking = {label: [key for key in _KEYS if own and key in known - own.keys()] for label, own in facts.items()}
    return DecodingDifferences(differs, {label: keys for label, keys in lacking.items() if keys or not facts[label]})


def decoding_of_runs(runs: Sequence[ScoredRun | MeasuredRun]) -> DecodingDifferences:
    return decoding_differences({run.label: (run.folder, run.scores) for run in runs})


def _recorded(folder: Path, scores: Mapping[str, Any]) -> dict[str, str]:
    """Return what the results in a folder say of their decoding; nothing of answers that were only scored."""
    passes = [file.name.removesuffix(".decoding.json") for file in sorted(folder.glob("*.decoding.json"))]
    record = next((read_record(PassFiles(folder, name)) for name in passes if name != WITHOUT_CONTEXT), None)
    if record is None and not scores.get("engine"):
        return {}
    found: dict[str, Any] = {key: scores[key] for key in _FROM_SCORES if scores.get(key) is not None}
    found["decoding"] = describe(scores)
    if record is not None:
        print_of = record["fingerprint"]
        found = {**{key: print_of.get(key, _LEFT_OUT.get(key)) for key in _KEYS}, **found}
        found["decoding"] = describe(print_of)
        found["dtype"] = found["dtype"] or "the model's own"
        found["version"] = record.get("environment", {}).get("d2e_sft")
        found[f"weights of {scores['model']}"] = print_of.get("model")
    model = Path(str(scores.get("model")))
    if (model / SEAL_FILE).is_file():  # of an adapter: the base that it was trained on
        found |= {f"weights of {name}": sums for name, sums in read_seal(model).depends_on.items()}
    return {key: _shown(value) for key, value in found.items()}


def _shown(value: Any) -> str:
    text = "none" if value is None else value if isinstance(value, str) else json.dumps(value, default=str)
    return re.sub(r"([0-9a-f]{8})[0-9a-f]{24,}", r"\1…", text)
