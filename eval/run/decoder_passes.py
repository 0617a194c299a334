"""Several decoders in one call of `d2e eval`: the run folder of each, and what they share."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from d2e_sft.util.errors import UserError
from eval.run.benchmark import Benchmark
from eval.run.options import EvalOptions, refuse_conflicts

if TYPE_CHECKING:
    from eval.score.scores import RunScores


def decoder_passes(model: str, decoders: tuple[str, ...], outs: tuple[Path, ...]) -> list[tuple[str | None, Path]]:
    """Each decoder with the run folder of its results.

    `outs` are the given folders: one per decoder, one that all their names begin with, or none. Raises UserError if
    their number does not fit, or two decoders have the same folder.
    """
    own = Path(model) if Path(model).is_dir() else Path("runs") / re.sub(r"[^\w.-]+", "-", model)
    chosen: tuple[str | None, ...] = decoders or (None,)
    folders = outs or (own,)
    if len(folders) == 1 and len(chosen) > 1:
        names = [re.sub(r"[^\w.]+", "-", str(decoder)).strip("-") for decoder in chosen]
        folders = tuple(folders[0].with_name(f"{folders[0].name}-{name}") for name in names)
    if len(set(folders)) != len(chosen) or len(folders) != len(chosen):
        raise UserError(
            f"{len(set(folders))} folders (--out) for {len(chosen)} decoders; expected one each, or one",
            remedy="give one, which the names of all begin with, and each decoder once",
        )
    return list(zip(chosen, folders, strict=True))


def scored_passes(
    model: str, located: Benchmark, passes: list[tuple[str | None, Path]], options: dict[str, Any]
) -> Iterator[tuple[Path, RunScores]]:
    """Run one pass after another; yields the run folder and the scores of each.

    Errors are as in `evaluate_model`; earlier passes are kept.
    """
    from eval.run.engines.engine import make_engine, shared_engine
    from eval.run.runner import evaluate_model

    load = make_engine if len(passes) == 1 else shared_engine()
    # Plain decoding comes last, as a contrast computes all states that it needs.
    for decoder, run in sorted(passes, key=lambda one: one[0] == "plain"):
        asked = EvalOptions(decoder=decoder, **options)
        yield run, evaluate_model(model, located, run=run, options=asked, load=load)


def check_single_decoder_options(system: str | None, judged: bool, options: dict[str, Any]) -> None:
    """Raise UserError for an option that supports only one decoder; `system` is the related system, if any."""
    engine, alpha, several = options["engine"], options["alpha"], "several --decoder"
    only_here = "it supports one, and only the engine in this process supports several"
    rules = (
        ("it has passes of its own", f"--bench {system}", system is not None),
        ("it reads the answers of one", "--judge", judged),
        (only_here, f"--engine {engine}", engine in ("vllm", "openai")),
        ("it leaves nothing to contrast", "--without-context", options["without_context"]),
        ("it belongs into the decoder, as d2e:alpha=0.5", f"--alpha {alpha}", alpha is not None),
    )
    refuse_conflicts((True, several, why, "give one --decoder, or drop it", {flag: used}) for why, flag, used in rules)
