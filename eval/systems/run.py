"""A run of a system's benchmark: options and model in, `RUN/eval/SYSTEM/scores.json` out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from d2e_sft.util.errors import UserError
from d2e_sft.util.files import write_whole
from eval.compare.measures.measure import MEASURES_FILE, write_measures
from eval.run.options import EvalOptions, resolve_options, warn_of_idle_options
from eval.run.passes import EvaluatedModel
from eval.run.processes import join_processes
from eval.score.scores import write_scores
from eval.systems.asker import Asker
from eval.systems.registry import SYSTEM_NAMES, load_system
from eval.systems.system import System, SystemCall, SystemOptions, SystemResult, parse_options

RAW_ROOT = Path("data/raw")
TABLES_FILE = "tables.md"
_RECORDED = ("engine", "engine_counts", "seconds", "resumed", "environment")  # of each pass


def evaluate_system(
    model: str, system: System[Any, Any], *, run: Path, data: Path | None, given: Sequence[str], options: EvalOptions
) -> tuple[dict[str, Any], SystemResult, Path]:
    """Decode and score a system's benchmark; return the content of `scores.json`, the result, and their folder.

    The `run` folder keeps answers, official predictions and scores. `data` is the folder with the official files; None
    is `data/raw/SYSTEM`. `given` are `NAME=VALUE` options. Raises UserError as `System.run`, or if options do not fit.
    """
    own = parse_options(system.options, given, system.name)
    by_likelihood = options.answer == "likelihood"
    if by_likelihood and not own.can_choose:
        called = " ".join((f"--bench {system.name}", *(f"--set {text}" for text in given)))
        raise UserError(
            f"--answer likelihood with {called}: its prompts ask for text that is generated, and have no options to "
            "score",
            remedy=f"drop it; prompts with options: {', '.join(_calls_with_options()) or 'none'}",
        )
    path = RAW_ROOT / system.name if data is None else data
    if not path.exists():
        raise UserError(
            f"{system.name}: {path} does not exist; expected its official files ({system.official_files})",
            remedy=f"get them ({system.obtain}), or name their folder: --data DIR",
        )
    config = resolve_options(model, options)
    if options.max_samples is None:  # the recipe's limit counts samples of PIPER
        config = replace(config, max_samples=None)
    form = "" if config.form == "chat" else config.form
    ways = (form, "likelihood" if by_likelihood else "", "without-context" if options.without_context else "")
    folder = run / "eval" / "-".join(filter(None, (system.name, own.variant, *ways)))
    processes = join_processes(config.engine)
    if processes.is_main:
        warn_of_idle_options(model, config)
    asker = Asker(EvaluatedModel(model, config, processes), folder)
    result = system.run(SystemCall(path, own, config.max_samples, options.seed, by_likelihood, config.form), asker)
    scores = {"system": system.name, **result.scores, **_record(asker, own)}
    processes.broadcast_from_main(lambda: write_result(folder, scores, result))
    return scores, result, folder


def _calls_with_options() -> list[str]:
    """Return the calls whose prompts have options, of all systems."""
    systems = [load_system(name) for name in SYSTEM_NAMES]
    return [
        " ".join((f"--bench {one.name}", *(f"--set {name}={value}" for name, value in one.options.choosing.items())))
        for one in systems
        if one.options.choosing is not None
    ]


def _record(asker: Asker, own: SystemOptions) -> dict[str, Any]:
    """Return what the answers came from."""
    config = asker.config
    return {
        "model": asker.model,
        **config.decoding.record(),
        "without_context": config.options.without_context,
        "form": config.form,
        "options": own.model_dump(mode="json"),
        "max_samples": config.max_samples,
        "seed": config.options.seed,
        "passes": {name: {key: record[key] for key in _RECORDED} for name, record in asker.records.items()},
    }


def write_result(folder: Path, scores: dict[str, Any], result: SystemResult) -> None:
    """Keep a result: its files, its tables, its measures and, last, `scores.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in result.files.items():
        write_whole(folder / name, text)
    tables = "\n\n".join(table.markdown() for table in result.tables)
    write_whole(folder / TABLES_FILE, tables + "\n")
    write_measures(result.measures, folder)
    write_scores(folder, scores, [*result.files, TABLES_FILE, MEASURES_FILE])
