"""A run of a system's benchmark: options and model in, `RUN/eval/SYSTEM/scores.json` out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from d2e_sft.util.errors import UserError
from d2e_sft.util.files import write_json, write_whole
from eval.compare.measures.measure import write_measures
from eval.run.options import EvalOptions, resolve_options, warn_of_idle_options
from eval.run.processes import join_processes
from eval.score.scores import SCORES_FILE
from eval.systems.asker import Asker
from eval.systems.system import System, SystemCall, SystemResult, parse_options

RAW_ROOT = Path("data/raw")
_RECORDED = ("engine", "engine_counts", "seconds", "resumed", "environment")  # of each pass


def evaluate_system(
    model: str,
    system: System[Any, Any],
    *,
    run: Path,
    data: Path | None,
    given: Sequence[str],
    options: EvalOptions,
) -> tuple[dict[str, Any], SystemResult, Path]:
    """Decode and score a system's benchmark, and keep answers, official predictions and scores.

    Args:
        run: the run folder that keeps the results.
        data: the folder with the official files; None is `data/raw/SYSTEM`.
        given: `NAME=VALUE` options of the system.

    Returns:
        the content of `scores.json`, the result with its tables, and the folder of both.

    Raises:
        UserError: as `System.run`, or options that do not fit.
    """
    own = parse_options(system.options, given, system.name)
    by_likelihood = options.answer == "likelihood"
    if by_likelihood and not own.can_choose:
        raise UserError(
            f"--answer likelihood with --bench {system.name} {' '.join(f'--set {text}' for text in given)}".rstrip()
            + ": its prompts ask for text that is generated, and have no options to score",
            remedy="drop it; of the systems crepe has such a prompt: --bench crepe --set prompt=yes_no",
        )
    config = resolve_options(model, options)
    if options.max_samples is None:  # the recipe's limit counts samples of PIPER
        config = replace(config, max_samples=None)
    ways = ("likelihood" if by_likelihood else "", "without-context" if options.without_context else "")
    parts = (system.name, own.variant, *ways)
    folder = run / "eval" / "-".join(filter(None, parts))
    processes = join_processes(config.engine)
    if processes.is_main:
        warn_of_idle_options(config)
    asker = Asker(model, config, processes, folder)
    path = RAW_ROOT / system.name if data is None else data
    if not path.exists():
        raise UserError(
            f"{system.name}: {path} does not exist; expected its official files ({system.official_files})",
            remedy=f"get them ({system.obtain}), or name their folder: --data DIR",
        )
    result = system.run(SystemCall(path, own, config.max_samples, options.seed, by_likelihood), asker)
    scores = {
        "system": system.name,
        **result.scores,
        "model": asker.model,
        **config.decoding.record(),
        "without_context": config.options.without_context,
        "options": own.model_dump(mode="json"),
        "max_samples": config.max_samples,
        "seed": config.options.seed,
        "passes": {name: {key: record[key] for key in _RECORDED} for name, record in asker.records.items()},
    }
    processes.decided_by_main(lambda: write_result(folder, scores, result))
    return scores, result, folder


def write_result(folder: Path, scores: dict[str, Any], result: SystemResult) -> None:
    """Keep a result: its files, its tables, its measures and, last, `scores.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in result.files.items():
        write_whole(folder / name, text)
    tables = "\n\n".join(table.markdown() for table in result.tables)
    write_whole(folder / "tables.md", tables + "\n")
    write_measures(result.measures, folder)
    write_json(folder / SCORES_FILE, scores)
