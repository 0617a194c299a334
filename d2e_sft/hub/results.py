"""Results for a model card: each `RUN/eval/BENCH/scores.json` as a table in %, and for the Hub's model-index."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult

from d2e_sft.config.decoding import describe
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import read_results
from d2e_sft.util.table import NONE, Table, percent, percent_interval

SCORES_FILE = "scores.json"
_TABLES_FILE = "tables.md"
_REMEDY = "restore it, score the run again with the same d2e eval, or remove its folder"
_TASKS = {
    "nli": "text-classification",
    "scq": "multiple-choice",
    "mcq": "multiple-choice",
    "qa": "question-answering",
    "chat": "text-generation",
}
_METRICS = (("exact_match", "exact match"), ("f1", "token-level F1"))
_SCORES = ("mean", "exact_match", "f1")
_COLUMNS = ("relation", "dataset", "format", "n", "mean", "exact match", "F1")
_SETTINGS = {"zero_shot": "zero-shot", "few_shot": "few-shot", "cot": "chain of thought"}


@dataclass(frozen=True)
class CardResult:
    name: str  # the folder under `eval/`
    facts: tuple[str, ...]  # how it was decoded and what was omitted, in a few words each
    table: str  # Markdown; below it the subsets and refusals, if there are any
    groups: tuple[Mapping[str, Any], ...]  # dataset × relation × format; empty for the benchmark of a related system
    partial: bool  # only a subset was scored


def benchmark_results(run: Path) -> list[CardResult]:
    """Return the run's results by name of the benchmark; raise UserError if a file of scores is damaged."""
    return [_result(path) for path in sorted(run.glob(f"eval/*/{SCORES_FILE}"))]


def eval_results(results: Iterable[CardResult]) -> list[EvalResult]:
    """Return the Hub's model-index entries: exact match and F1 of each group in percent, the interval in the name."""
    return [
        EvalResult(
            task_type=_TASKS.get(group["format"], "text-generation"),
            dataset_type=str(group["dataset"]),
            dataset_name=f"{group['dataset']} ({group['relation']}, {group['format']})",
            dataset_config=str(group["relation"]),
            dataset_split="test",
            dataset_args={"benchmark": result.name, "samples": group["n"]},
            metric_type=metric,
            metric_value=round(100 * group[metric]["mean"], 1),
            metric_name=f"{label} (95 % interval {percent(group[metric]['low'])}, {percent(group[metric]['high'])})",
        )
        for result in results
        for group in result.groups
        for metric, label in _METRICS
    ]


def read_scores(path: Path) -> dict[str, Any]:
    """Return the content of a file of scores; UserError if it, or a file that it lists, is damaged or was edited."""
    return read_results(dict[str, Any], path, "the scores of `d2e eval`", _REMEDY)


def _result(path: Path) -> CardResult:
    name, scores = path.parent.name, read_scores(path)
    try:
        if "system" in scores:  # scores of a related system, with a table of its own
            table = path.with_name(_TABLES_FILE).read_text(encoding="utf-8").strip()
            subset = scores.get("max_samples")
            facts = (f"decoded {describe(scores)}", *([f"a subset of {subset}"] if subset else []))
            return CardResult(name, facts, table, (), bool(subset))
        groups = tuple(scores["groups"])
        parts = filter(None, (_table(scores), _subsets(scores), _refusals(scores)))
        return CardResult(name, _facts(scores), "\n\n".join(parts), groups, bool(scores.get("subset")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path}: not the scores of `d2e eval` ({type(error).__name__}: {error})",
            _REMEDY,
        ) from None


def _facts(scores: Mapping[str, Any]) -> tuple[str, ...]:
    facts = [_SETTINGS.get(scores.get("setting", ""), "zero-shot"), f"prompt set `{Path(scores['prompt_set']).name}`"]
    facts.append(f"decoded {describe(scores)}")
    if scores.get("answer") == "likelihood":
        facts.append("the likeliest option, nothing generated")
    if subset := scores.get("subset"):
        facts.append(
            f"a random subset: at most {subset['per_group']} of each dataset × relation × format, "
            f"{scores['overall']['n']:,} of {subset['of']:,} samples"
        )
    if lacking := scores.get("lacking"):
        facts.append(f"not scored: {', '.join(map(str, lacking))}")
    return tuple(facts)


def _table(scores: Mapping[str, Any]) -> str:
    """Return groups by relation, with the plain mean over the groups of each relation, and all samples at the end."""
    lines: list[list[str]] = []
    averages = {entry["relation"]: entry for entry in scores.get("relations", ())}
    for relation in dict.fromkeys(group["relation"] for group in scores["groups"]):
        groups = [group for group in scores["groups"] if group["relation"] == relation]
        lines += [_line(group, relation, str(group["dataset"])) for group in groups]
        if len(groups) > 1 and relation in averages:
            means = [percent(averages[relation][key]) for key in _SCORES]
            total = f"{sum(group['n'] for group in groups):,}"
            lines.append([relation, f"**average of {len(groups)}**", "", total, *means])
    if len(scores["groups"]) > 1:
        lines.append(_line(scores["overall"], "all", "**all samples**"))
    return Table.of(_COLUMNS, lines).markdown(escape=False)


def _subsets(scores: Mapping[str, Any]) -> str:
    """Return a table with a row for each subset of a dataset; empty without subsets."""
    rows = [
        [str(part["dataset"]), subset, f"{own['n']:,}", *(_cell(own.get(key)) for key in ("accuracy", "habit_rate"))]
        for part in scores.get("subsets", ())
        for subset, own in part["subsets"].items()
    ]
    about = (
        "By subset: without the context, the usual answer is right on aligned rows and wrong on conflict rows. "
        "Accuracy is exact match; a chat is right if it contains an accepted answer. Habit: the usual answer is given."
    )
    table = Table.of(("dataset", "subset", "n", "accuracy", "habit"), rows).markdown(escape=False)
    return f"{about}\n\n{table}" if rows else ""


def _refusals(scores: Mapping[str, Any]) -> str:
    """Return a line on the rows that lack the answer and on the others; empty if no row asks for a refusal."""
    rates = scores["overall"].get("faithfulness") or {}
    if "false_refusal" not in rates:
        return ""
    right, wrong = (_cell(rates.get(key)) for key in ("refusal", "false_refusal"))
    return (
        f"Refused: {right} % of the {rates['lacking']:,} rows that lack the answer; wrongly {wrong} % of the others."
    )


def _cell(score: Mapping[str, float] | None) -> str:
    return NONE if score is None else percent_interval(score["mean"], score["low"], score["high"])


def _line(group: Mapping[str, Any], relation: str, dataset: str) -> list[str]:
    fmt = "" if group["format"] == "all" else str(group["format"])
    return [relation, dataset, fmt, f"{group['n']:,}", *(_cell(group[key]) for key in _SCORES)]
