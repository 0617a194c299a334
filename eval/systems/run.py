"""What `d2e eval --bench SYSTEM` and `d2e score` do: a run with a model, scored files of predictions, and templates.

Both leave `RUN/eval/SYSTEM/scores.json`, with tables, measures and predictions next to it.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from d2e_sft.util.errors import UserError
from d2e_sft.util.files import replacing, write_whole
from d2e_sft.util.terminal import say
from eval.compare.compare import Comparison, compare_measures, compare_runs
from eval.compare.runs import distinct_labels
from eval.compare.verdicts import text_of
from eval.run.options import EvalOptions, resolve_options, warn_of_idle_options
from eval.run.passes import EvaluatedModel
from eval.run.processes import join_processes
from eval.score.measures import MEASURES_FILE, write_measures
from eval.score.scores import write_scores
from eval.systems import SYSTEM_NAMES, load_benchmark
from eval.systems.asking import Asker
from eval.systems.benchmark import Benchmark, BenchmarkCall, BenchmarkOptions, BenchmarkResult, parse_options
from eval.systems.reading import flat_text, is_flat
from eval.systems.rows import RowsResult

RAW_ROOT = Path("data/raw")
TABLES_FILE = "tables.md"
_RECORDED = ("engine", "engine_counts", "seconds", "resumed", "environment")  # of each pass


def evaluate_system(
    model: str,
    benchmark: Benchmark[Any, Any],
    *,
    run: Path,
    data: Path | None,
    settings: Sequence[str],
    options: EvalOptions,
) -> tuple[dict[str, Any], BenchmarkResult, Path]:
    """Decode and score a benchmark; return the content of `scores.json`, the result, and their folder in `run`.

    `data` is the folder with the official files; None is `data/raw/SYSTEM`. `settings` are `NAME=VALUE` options.
    """
    name, chosen = benchmark.name, parse_options(benchmark.options, settings, benchmark.name)
    by_likelihood = options.answer == "likelihood"
    if by_likelihood and not chosen.can_choose:
        raise UserError(
            f"--answer likelihood with {' '.join((f'--bench {name}', *(f'--set {text}' for text in settings)))}: its "
            "prompts ask for text that is generated, and have no options to score",
            remedy=f"drop it; prompts with options: {', '.join(_calls_with_options()) or 'none'}",
        )
    path = RAW_ROOT / name if data is None else data
    if not path.exists():
        raise UserError(
            f"{name}: {path} does not exist; expected its official files ({benchmark.official_files})",
            remedy=f"get them ({benchmark.obtain}), or name their folder: --data DIR",
        )
    config = resolve_options(model, options)
    if options.max_samples is None:  # the recipe's limit counts samples of PIPER
        config = replace(config, max_samples=None)
    form = "" if config.form == "chat" else config.form
    variants = (form, "likelihood" if by_likelihood else "", "without-context" if options.without_context else "")
    folder = run / "eval" / "-".join(filter(None, (name, chosen.variant, *variants)))
    processes = join_processes(config.engine)
    if processes.is_main:
        warn_of_idle_options(model, config)
    asker = Asker(EvaluatedModel(model, config, processes), folder)
    call = BenchmarkCall(path, chosen, config.max_samples, options.seed, by_likelihood, config.form)
    result = benchmark.run(call, asker)
    scores = {"system": name, **result.scores, **_record(asker, chosen)}
    processes.broadcast_from_main(lambda: write_result(folder, scores, result))
    return scores, result, folder


def _calls_with_options() -> list[str]:
    options = {name: load_benchmark(name).options.choosing for name in SYSTEM_NAMES}
    return [
        " ".join((f"--bench {name}", *(f"--set {option}={value}" for option, value in choosing.items())))
        for name, choosing in options.items()
        if choosing is not None
    ]


def _record(asker: Asker, options: BenchmarkOptions) -> dict[str, Any]:
    config = asker.config
    return {
        "model": asker.model,
        **config.decoding.record(),
        "without_context": config.options.without_context,
        "form": config.form,
        "options": options.model_dump(mode="json"),
        "max_samples": config.max_samples,
        "seed": config.options.seed,
        "passes": {name: {key: record[key] for key in _RECORDED} for name, record in asker.records.items()},
    }


def write_result(folder: Path, scores: dict[str, Any], result: BenchmarkResult) -> None:
    """Keep a result: its files, its tables, its measures and, last, `scores.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in result.files.items():
        write_whole(folder / name, text)
    write_whole(folder / TABLES_FILE, "\n\n".join(table.markdown() for table in result.tables) + "\n")
    write_measures(result.measures, folder)
    write_scores(folder, scores, [*result.files, TABLES_FILE, MEASURES_FILE])


@dataclass(frozen=True)
class ScoredFile:
    """One file of predictions, scored; `label` is its name in tables."""

    label: str
    file: Path
    system: str
    result: BenchmarkResult

    def write(self, run: Path) -> Path:
        """Leave it as `d2e eval` does, for `d2e compare`, `report` and `table`; returns the folder RUN/eval/BENCH.

        UserError if a model's decoded answers are there, which another file would replace.
        """
        rows = self.result if isinstance(self.result, RowsResult) else None
        folder = run / "eval" / (self.system if rows is None else rows.run.bench.name)
        in_place = rows is None and self.file.parent.resolve() == folder.resolve()
        if not in_place and (decoded := sorted(folder.glob("*.decoding.json"))):
            raise UserError(
                f"{folder}: holds answers of a model, decoded by d2e eval ({decoded[0].name}); expected a folder "
                "without any",
                remedy="write the scores elsewhere: --out FOLDER",
            )
        if rows is not None:
            return rows.write(folder)
        if self.file.is_file() and not in_place:
            with replacing(folder / self.file.name) as partial:
                shutil.copyfile(self.file, partial)
        write_result(folder, {"system": self.system, **self.result.scores, "model": str(self.file)}, self.result)
        return folder


def score_files(
    name: str, files: Sequence[Path], gold: Path, settings: Sequence[str], names: Sequence[str] | None = None
) -> list[ScoredFile]:
    """Score each file against the same gold, with the same `NAME=VALUE` options; `names` are those in tables."""
    if names is None:
        labels = distinct_labels(files)
        stems = [Path(label).name.removesuffix(file.suffix) for label, file in zip(labels, files, strict=True)]
        names = stems if len(set(stems)) == len(stems) else labels
    elif len(names) != len(files) or len(set(names)) != len(names) or not all(names):
        raise UserError(
            f"--names {','.join(names)}: expected {len(files)} different names, one for each file of predictions",
            remedy="give them in the order of the files, with commas between them",
        )
    benchmark = load_benchmark(name)
    options = parse_options(benchmark.score_options, settings, name)
    _say_gold_file(benchmark, gold, options)
    pairs = zip(names, files, strict=True)
    return [ScoredFile(label, file, benchmark.name, benchmark.score(file, gold, options)) for label, file in pairs]


def _say_gold_file(benchmark: Benchmark[Any, Any], gold: Path, options: BenchmarkOptions) -> None:
    """Say which file of a folder is read, unless it is read whole."""
    if gold.is_dir() and (file := benchmark.gold_at(gold, options)).is_file():
        say(f"gold: {file}", err=True)


def compare_scored(scored: Sequence[ScoredFile]) -> tuple[Comparison, str]:
    """Return paired differences to the first file, and their text; UserError if the files are about other items."""
    comparison = compare_measures(scored[0].system, {file.label: file.result.measures for file in scored})
    runs = [file.result.as_run(file.file, file.label) for file in scored if isinstance(file.result, RowsResult)]
    runs = runs if len(scored) > 1 else []
    return comparison, text_of(compare_runs(runs) if runs else comparison).rstrip("\n")


def write_template(system: str, gold: Path, settings: Sequence[str], file: Path) -> str:
    """Write the flat file of predictions that a scorer wants, all but the predictions; returns what to fill in.

    `settings` are `NAME=VALUE` options. UserError if the gold file is damaged, or the file's name says no form or is
    taken.
    """
    if not is_flat(file):
        raise UserError(f"--template {file}: expected a name that ends in .jsonl or .csv", "name another file")
    if file.is_file():
        raise UserError(f"--template {file}: exists, and may hold answers", "name another file, or remove it")
    benchmark = load_benchmark(system)
    options = parse_options(benchmark.score_options, settings, system)
    _say_gold_file(benchmark, gold, options)
    rows = list(benchmark.template(benchmark.read_gold(benchmark.gold_at(gold, options), options), options))
    write_whole(file, flat_text(file, rows))
    filled = [name for name in (rows[0] if rows else ()) if all(row[name] == "" for row in rows)]
    return f"{len(rows):,} lines, to fill in: {', '.join(filled)}"
