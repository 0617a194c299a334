"""Several decoders in one call of `d2e eval`: which run folder each has, and what they share."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from d2e_sft.util.errors import UserError
from d2e_sft.util.startup import collector_paused
from eval.run.benchmark import Benchmark
from eval.run.options import EvalOptions

if TYPE_CHECKING:
    from eval.score.scores import RunScores


def decoder_passes(model: str, decoders: tuple[str, ...], outs: tuple[Path, ...]) -> list[tuple[str | None, Path]]:
    """Each decoder with the run folder of its results.

    Args:
        outs: folders that were named: one for each decoder, or one that the names of all begin with, or none.

    Raises:
        UserError: there are not as many, or two decoders have the same.
    """
    own = Path(model) if Path(model).is_dir() else Path("runs") / re.sub(r"[^\w.-]+", "-", model)
    if len(decoders) < 2:
        if len(outs) > 1:
            raise UserError(
                f"--out {outs[0]} --out {outs[1]}: {len(outs)} folders for one decoder; expected one",
                remedy="give one, or as many --decoder",
            )
        return [(decoders[0] if decoders else None, outs[0] if outs else own)]
    if len(outs) < 2:
        begins = outs[0] if outs else own
        names = [re.sub(r"[^\w.]+", "-", decoder).strip("-") for decoder in decoders]
        outs = tuple(begins.with_name(f"{begins.name}-{name}") for name in names)
    if len(outs) != len(decoders):
        raise UserError(
            f"{len(outs)} folders (--out) for {len(decoders)} decoders; expected none, one or {len(decoders)}",
            remedy="give one, which the names of all begin with",
        )
    twice = next((out for i, out in enumerate(outs) if out in outs[:i]), None)
    if twice is not None:
        raise UserError(
            f"{twice}: the results of two decoders would be in one folder; expected one each",
            remedy="drop the decoder that is given twice, or name a folder for each with --out",
        )
    return list(zip(decoders, outs, strict=True))


def scored_passes(
    model: str, located: Benchmark, passes: list[tuple[str | None, Path]], options: dict[str, Any]
) -> Iterator[tuple[Path, RunScores]]:
    """One pass after another, each with the folder of its results.

    Raises:
        UserError: as `evaluate_model`; the passes before it are kept.
    """
    from eval.run.engines.choose import make_engine, shared_engine

    with collector_paused():
        from eval.run.runner import evaluate_model

    load = make_engine if len(passes) == 1 else shared_engine()
    # What a contrast needs of the model holds what plain decoding needs, and not the other way round.
    for decoder, run in sorted(passes, key=lambda one: one[0] == "plain"):
        asked = EvalOptions(decoder=decoder, **options)
        yield run, evaluate_model(model, located, run=run, options=asked, load_engine=load)


def refuse_what_one_decoder_alone_has(system: str | None, judged: bool, options: dict[str, Any]) -> None:
    """Options that go with one decoder only.

    Args:
        system: the related system that is asked for, if one is.

    Raises:
        UserError: there is one of them.
    """
    asked = {
        f"--bench {system}": (system is not None, "has passes of its own"),
        "--judge": (judged, "reads the answers of one"),
        f"--engine {options['engine']}": (
            options["engine"] in ("vllm", "openai"),
            "is set up for one, and only the engine in this process takes several",
        ),
        "--without-context": (options["without_context"], "leaves nothing to contrast"),
        f"--alpha {options['alpha']}": (options["alpha"] is not None, "is said by a decoder itself, as d2e:alpha=0.5"),
    }
    for flag, (is_given, why) in asked.items():
        if is_given:
            raise UserError(f"{flag} with several --decoder: it {why}", remedy="give one --decoder, or drop it")
