"""`d2e data build`: raw files to rows."""

from __future__ import annotations

from typing import Any, get_args

import click

from d2e_sft.config.options import Number, given_options
from d2e_sft.data.bad_rows import BAD_ROWS_FILE
from d2e_sft.judge.judge import make_judge
from d2e_sft.judge.options import JudgeOptions, judge_options
from d2e_sft.util.errors import UserError, did_you_mean
from d2e_sft.util.terminal import filled, folded
from data_builders.build.options import JUDGE_JOBS, BuildOptions, JudgeJob
from data_builders.build.run import IncompleteBuildError, estimate_models
from data_builders.build.run import build as build_datasets
from data_builders.build.suites import PIPER_10K, SUITES, ContextBounds
from data_builders.commands.build_report import print_result
from data_builders.commands.shared import PATH
from data_builders.refine.rules import RefinerOptions
from data_builders.sources import SOURCES

_FOR_DRAWING = ("size", "allow_shortfall")
_FOR_TRAINING = (*_FOR_DRAWING, "judge_backend", "min_context_words", "max_context_words", "against", "swap", "refine")


def _read_jobs(_: click.Context, __: click.Parameter, text: str) -> frozenset[JudgeJob]:
    names = {name.strip() for name in text.split(",")}
    if unknown := sorted(names.difference(JUDGE_JOBS)):
        hint = did_you_mean(unknown[0], JUDGE_JOBS)
        raise UserError(f"--judge-jobs: got {unknown[0]!r}; expected some of {', '.join(JUDGE_JOBS)}.{hint}")
    return frozenset(job for job in JUDGE_JOBS if job in names)


@click.command()
@click.option(
    "--datasets", help=f"Comma-separated names, of: {', '.join(SOURCES)}; or .yaml files that describe your own data."
)
@click.option(
    "--suite",
    type=click.Choice(list(SUITES)),
    help="Build a set of datasets instead: "
    + "; ".join(f"{suite.name}: {suite.summary}" for suite in SUITES.values()),
)
@click.option("--out", type=PATH, required=True, help="Folder for the results.")
@click.option("--overwrite", is_flag=True, help="Replace a build in OUT.")
@click.option(
    "--raw",
    type=PATH,
    envvar="D2E_RAW",
    show_envvar=True,
    help="Folder with the raw files as DATASET/FILE (socialiqa, alphanli, storycloze: ood/DATASET/FILE); "
    "without it the official files are downloaded.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of every draw.")
@click.option("--skip-bad", is_flag=True, help=f"Put bad raw rows aside in {BAD_ROWS_FILE} and count them.")
@click.option(
    "--min-context-words",
    type=click.IntRange(0),
    help=f"Leave out training samples with a shorter context. Default: {PIPER_10K.bounds.least} for {PIPER_10K.name}.",
)
@click.option(
    "--max-context-words",
    type=click.IntRange(0),
    help=f"Leave out training samples with a longer context. Default: {PIPER_10K.bounds.most} for {PIPER_10K.name}.",
)
@click.option(
    "--size", type=click.IntRange(1), help=f"Rows to draw for {PIPER_10K.name}. Default: {PIPER_10K.size:,}."
)
@click.option(
    "--allow-shortfall",
    is_flag=True,
    help="If a dataset has too few samples for its ratio, draw the rest from the others, and record it.",
)
@click.option(
    "--against",
    metavar="TEST",
    multiple=True,
    type=PATH,
    help="Leave out training samples that are in this benchmark file or build folder; may be repeated. "
    f"{PIPER_10K.name} never overlaps with {' and '.join(PIPER_10K.disjoint_from)}.",
)
@click.option(
    "--swap",
    metavar="SHARE",
    type=Number(0, 1),
    default=0.0,
    help="Replace the answer by another entity of its kind, also in the contexts, in this share of each dataset's "
    "training rows (0 to 1), where that makes sense.",
)
@click.option(
    "--swap-test",
    metavar="SHARE",
    type=Number(0, 1),
    default=0.0,
    help="Add a copy with another entity to this share of each dataset's test rows, where that makes sense: "
    "d2e eval then reports the habit gap.",
)
@click.option(
    "--swap-pool",
    metavar="POOLS",
    help="Where other answers come from, comma-separated in this order: options (the row's own options or choices), "
    "lists (numbers, dates, persons, places, organisations), dataset (answers of other rows), model. Default: all.",
)
@click.option(
    "--swap-model",
    metavar="NAME",
    help="A model that proposes answers for rows without another: a folder, a Hub name or builtin:….",
)
@judge_options
@click.option(
    "--judge-jobs",
    default=",".join(JUDGE_JOBS),
    show_default=True,
    callback=_read_jobs,
    help="Jobs of the judge: reject training samples whose context does not support the answer; refine contexts.",
)
@click.option(
    "--refine",
    type=click.Choice(get_args(RefinerOptions.model_fields["by"].annotation)),
    help="Who refines training contexts without a judge: rules (default), or the likelihood of the answer by a model, "
    "with and without each clause.",
)
@click.option("--refine-model", metavar="NAME", help="For --refine likelihood: a folder, a Hub name or builtin:….")
@click.option(
    "--estimate",
    is_flag=True,
    help="Print the requests and the cost of the judge, or the time of --refine likelihood; build nothing.",
)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
def build(
    *,
    datasets: str | None,
    suite: str | None,
    min_context_words: int | None,
    max_context_words: int | None,
    judge: JudgeOptions,
    estimate: bool,
    refine: str | None,
    refine_model: str | None,
    swap_pool: str | None,
    swap_model: str | None,
    settings: tuple[str, ...],
    **given: Any,
) -> None:
    """Build datasets into OUT: train.parquet, test.parquet (and dev.parquet), manifest.json and README.md.

    KEY=VALUE sets an option of a dataset (boxes.boxes=3), of the refiner (refine.threshold=0.5) or of swaps
    (swap.dtype=bfloat16).
    Your own data needs a description, mine.yaml:

    \b
      train: mine.csv               CSV, TSV, JSONL, JSON or Parquet
      test: 0.2                     a share of train, or a file; dev is given in the same ways
      format: qa                    or nli, scq, mcq
      relation: causal              or temporal, counterfactual, subevent_conditional, factual
      columns: {context: passage, question: query, answer: label}

    \b
    Examples:
      d2e data build --datasets boxes,tracie --out data/mini boxes.boxes=3 boxes.operations=2
      d2e data build --datasets mine.yaml,boxes --out data/mine  # own data: docs/how-to/own-data.md
      d2e data build --suite piper --out data/piper
      d2e data build --suite conflict --out data/conflict           # context against habit
      d2e data build --suite piper-10k --seed 0 --allow-shortfall --out data/piper-10k
      d2e data build --suite piper-10k --out data/by-model --refine likelihood \\
          --refine-model builtin:smollm2-135m-instruct
    """
    if (datasets is None) == (suite is None):
        raise UserError(
            "expected either --datasets or --suite" + (", got both" if suite else ""),
            remedy=f"name datasets ({', '.join(SOURCES)}, or mine.yaml) or a suite ({', '.join(SUITES)})",
        )
    chosen = None if suite is None else SUITES[suite]
    for name, flag in given_options(click.get_current_context()).items():
        if name in _FOR_TRAINING and chosen and chosen.split == "test":
            raise UserError(f"{flag}: not used for suite {suite}, which only has test rows", "drop it")
        if name in _FOR_DRAWING and not (chosen and chosen.ratios):
            raise UserError(f"{flag}: only for suites with fixed ratios ({PIPER_10K.name})", "drop it")
    bounds = chosen.bounds if chosen else ContextBounds()
    flags = {
        "refine.by": refine,
        "refine.model": refine_model,
        "swap.pools": swap_pool,
        "swap.model": swap_model,
    }
    names = [name.strip() for name in (datasets or "").split(",") if name.strip()]
    options = BuildOptions(
        list(chosen.datasets) if chosen else names,
        suite=chosen,
        bounds=ContextBounds(
            bounds.least if min_context_words is None else min_context_words,
            bounds.most if max_context_words is None else max_context_words,
        ),
        judge=make_judge(judge),
        settings=[*settings, *(f"{key}={value}" for key, value in flags.items() if value)],
        **given,  # options with the names of BuildOptions
    )
    if estimate:
        click.echo(folded(estimate_models(options)))
        return
    try:
        print_result(build_datasets(options))
    except IncompleteBuildError as error:
        print_result(error.result)
        raise
    finally:
        if options.judge is not None:
            # Also after a failed build, since it was paid for.
            click.echo(filled(f"judge: {options.judge.usage.describe()}"), err=True)
