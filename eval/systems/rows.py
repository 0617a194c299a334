"""Outputs of anybody's model on a benchmark's rows, scored as `d2e eval` scores its own; no model is needed.

A line has `output` (the generated text without the prompt), `id`, and `dataset` if several datasets have the id.
Whatever else it has is not read, so a `predictions.jsonl` is such a file, too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from d2e_sft.data.built import warn_if_changed
from d2e_sft.data.chat_template import Form
from d2e_sft.data.prompts import Setting, load_prompt_set
from d2e_sft.data.sample import EventSample, read_samples
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import sha256_of
from d2e_sft.util.terminal import warn
from eval.compare.run_tables import score_tables, subset_tables
from eval.compare.runs import ScoredRun
from eval.run.benchmark import locate_benchmark, results_name
from eval.score.measures import Measure, digest, shares
from eval.score.predictions import Prediction, SampleKey, refuse_edited, write_predictions
from eval.score.scores import RunScores, ScoredBenchmark, group_of, score_predictions, write_scores
from eval.score.scoring import score_output
from eval.systems import ROWS
from eval.systems.benchmark import Benchmark, BenchmarkOptions, BenchmarkResult
from eval.systems.reading import FlatRow, Text, file_in, read_lines, refuse_unfilled


class RowsOptions(BenchmarkOptions):
    """How the model was asked, which says where in an output the answer is."""

    prompt_set: str = Field(default="default", description="a name or a file, for the response form")
    setting: Setting = Field(default="zero_shot", description="zero_shot, few_shot or cot")
    form: Form = Field(
        default="chat", description="chat, one_turn or completion, whose outputs lack the response form"
    )
    missing: Literal["refuse", "leave_out"] = Field(default="refuse", description="rows without an output")


@dataclass(frozen=True, kw_only=True)
class RowsResult(BenchmarkResult):
    """The scored outputs of a run, in the order of the benchmark's file; `left_out` counts rows without an output."""

    run: RunScores
    predictions: list[Prediction]
    left_out: int

    @property
    def text(self) -> str:
        left_out = f"rows without an output, left out: {self.left_out:,}" if self.left_out else ""
        return "\n\n".join(filter(None, [super().text, left_out]))

    def as_run(self, file: Path, label: str) -> ScoredRun:
        """Return the outputs as a run that was never written."""
        predictions = {(p.dataset, p.id): p for p in self.predictions}
        return ScoredRun(file, label, file, self.run, predictions)

    def write(self, folder: Path) -> Path:
        """Leave them as `d2e eval` does, for `d2e compare` and the others."""
        write_predictions(self.predictions, folder / "predictions.jsonl")
        write_scores(folder, self.scores, ["predictions.jsonl"])
        return folder


class Rows(Benchmark[list[EventSample], dict[SampleKey, str]]):
    """Any benchmark of rows, scored without a model."""

    name = ROWS
    score_options = RowsOptions

    def gold_at(self, path: Path, options: Any, option: str = "--gold") -> Path:
        return locate_benchmark(path).file

    def read_gold(self, path: Path, options: Any) -> list[EventSample]:
        return read_samples(path)

    def template(self, gold: list[EventSample], options: Any) -> Iterator[dict[str, Any]]:
        return ({"id": sample.id, "dataset": sample.dataset, "output": ""} for sample in gold)

    def score(self, predictions: Path, gold: Path, options: RowsOptions) -> RowsResult:
        """Score a file of outputs, or a run's; UserError, with file and line, if one is damaged or does not fit."""
        benchmark = locate_benchmark(gold)
        names = (f"{benchmark.name}/predictions.jsonl", "predictions.jsonl")
        outputs = file_in(predictions, names, "--predictions", "the outputs of a run")
        try:
            refuse_edited(outputs, foreign=True)
        except UserError as error:  # anybody's outputs are scored here, a changed copy of a run's among them
            warn(error.message)
        samples = read_samples(benchmark.file)
        sha256 = sha256_of(benchmark.file)
        warn_if_changed(benchmark.file, sha256)
        output_of = _read_outputs(outputs, samples, benchmark.file)
        lacking = [sample for sample in samples if (sample.dataset, sample.id) not in output_of]
        if lacking and options.missing == "refuse":
            raise UserError(
                f"{outputs}: no output for {len(lacking):,} of {len(samples):,} rows of {benchmark.file}, such as "
                f"{lacking[0].id!r} of {lacking[0].dataset}",
                remedy="give them, or score only the others: --set missing=leave_out",
            )
        prompts = load_prompt_set(options.prompt_set, options.form)
        wording = prompts.in_setting(options.setting)
        scored = [
            score_output(sample, output_of[key], wording.marker(fmt), options.setting, given=wording.given(fmt))
            for sample in samples
            if (key := (sample.dataset, sample.id)) in output_of and (fmt := sample.format)
        ]
        summary = score_predictions(scored)
        name = results_name(benchmark.name, options.setting, options.form)
        run = RunScores(
            model=str(outputs),
            alpha=None,
            setting=options.setting,
            form=options.form,
            prompt_set=prompts.name,
            prompt_set_given=options.prompt_set,
            bench=ScoredBenchmark(name=name, file=str(benchmark.file), sha256=sha256),
            **{part: getattr(summary, part) for part in summary.model_fields_set},
        )
        tables = score_tables(run) + subset_tables(run)
        measures = _measures(scored)
        return RowsResult(run.content(), tables, measures=measures, run=run, predictions=scored, left_out=len(lacking))


def _measures(predictions: Sequence[Prediction]) -> list[Measure]:
    """Return mean, exact match and F1 row by row, and the mean of each group if there are several."""
    keys = {f"{p.dataset}/{p.id}": p for p in predictions}
    gold = digest({key: p.gold for key, p in keys.items()})
    measures = []
    for metric, name in (("mean", "mean of EM and F1"), ("exact_match", "EM"), ("f1", "F1")):
        measures += shares(name, "rows", gold, {key: getattr(p, metric) for key, p in keys.items()})
    groups = list(dict.fromkeys(map(group_of, predictions)))
    for group in groups if len(groups) > 1 else ():
        means = {key: p.mean for key, p in keys.items() if group_of(p) == group}
        measures += shares(f"mean, {', '.join(group)}", "rows", gold, means)
    return measures


class OutputLine(FlatRow):
    id: Text
    dataset: Text | None = None
    output: str


def _read_outputs(path: Path, samples: list[EventSample], rows: Path) -> dict[SampleKey, str]:
    datasets: dict[str, list[str]] = {}
    for sample in samples:
        datasets.setdefault(sample.id, []).append(sample.dataset)
    outputs: dict[SampleKey, str] = {}
    for place, line in read_lines(path, OutputLine):
        known = datasets.get(line.id, [])
        if line.dataset is None and len(known) > 1:
            raise UserError(f"{place}: the id {line.id!r} is in {', '.join(known)}", remedy="name one: `dataset`")
        key = (line.dataset or (known or ["–"])[0], line.id)
        if key[0] not in known:
            raise UserError(
                f"{place}: no row {line.id!r}{f' of {line.dataset}' if line.dataset else ''} in {rows}",
                remedy="name the benchmark of these outputs with --gold",
            )
        if key in outputs:
            raise UserError(f"{place}: a second output for {line.id!r} of {key[0]}", remedy="keep one of them")
        outputs[key] = line.output
    refuse_unfilled(path, outputs.values(), "output")
    return outputs


ROWS_BENCHMARK = Rows()
