"""`d2e data build`: raw files to rows."""

from collections.abc import Sequence
from functools import partial
from typing import Any, get_args

import click

from d2e_sft.config.options import Number, comma_list, given_options
from d2e_sft.data.sample import BAD_ROWS_FILE
from d2e_sft.judge.judge import make_judge
from d2e_sft.judge.options import JudgeOptions, judge_options
from d2e_sft.util.errors import UserError
from d2e_sft.util.terminal import filled, folded, is_quiet, warn
from data_builders.build.choosing import Build
from data_builders.build.options import JUDGE_JOBS, BuildOptions
from data_builders.build.passages import REFUSAL, UNANSWERABLE
from data_builders.build.run import IncompleteBuildError, check_options, estimate_models
from data_builders.build.run import build as build_datasets
from data_builders.build.suites import PIPER_10K, SUITES, ContextBounds
from data_builders.commands.shared import PATH, print_table, some_of
from data_builders.quality.stats import refinement_tables
from data_builders.refine.rules import RefinerOptions
from data_builders.sources import SOURCES

_FOR_DRAWING = ("size", "allow_shortfall")
_FOR_TRAINING = (
    *(*_FOR_DRAWING, "judge_backend", "min_context_words", "max_context_words"),
    *("against", "swap", "unanswerable", "refine"),
)

_SHOWN_HABITS = 3
_POOLS = {"lists": "built-in lists", "dataset": "your data", "options": "the row's options", "model": "a model"}

_share_option = partial(click.option, metavar="SHARE", type=Number(0, 1), default=0.0)


@click.command()
@comma_list(
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
@_share_option(
    "--swap",
    help="Replace the answer by another entity of its kind, also in the contexts, in this share of each dataset's "
    "training rows (0 to 1), where that makes sense.",
)
@_share_option(
    "--swap-test",
    help="Add a copy with another entity to this share of each dataset's test rows, where that makes sense: "
    "d2e eval then reports the habit gap.",
)
@comma_list(
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
@_share_option(
    "--unanswerable",
    help="Give this share of each dataset's training rows (0 to 1) the context of another row, one that does not "
    "answer the question, and a refusal as the answer.",
)
@_share_option(
    "--unanswerable-test",
    help="Add such a copy to this share of each dataset's test rows: d2e eval then reports refusals.",
)
@click.option("--refusal", metavar="TEXT", default="", help=f"Answer of these rows. [default: {REFUSAL}]")
@click.option(
    "--distractors",
    metavar="N",
    type=click.IntRange(0),
    default=0,
    help="Put N passages of other rows that do not answer before or after each context, the most similar ones. The "
    "refined context stays.",
)
@judge_options
@comma_list(
    "--judge-jobs",
    default=",".join(JUDGE_JOBS),
    show_default=True,
    read=some_of(JUDGE_JOBS),
    help="Jobs of the judge: reject training samples whose context does not support the answer; refine contexts, "
    "unless --refine says who does.",
)
@click.option(
    "--refine",
    type=click.Choice(get_args(RefinerOptions.model_fields["by"].annotation)),
    help="Who refines training contexts: rules; likelihood of the answer, with and without each clause; or a model: "
    "local, or openai at the judge's endpoint. The --judge then only filters. "
    "[default: the judge, or rules]",
)
@click.option("--refine-model", metavar="NAME", help="For --refine: a folder, a Hub name, builtin:… or an endpoint's.")
@click.option(
    "--estimate",
    is_flag=True,
    help="Print the requests and the cost of the judge, or the time of --refine likelihood; build nothing.",
)
@click.option("--check", is_flag=True, hidden=True, help="Check the options; read and build nothing (d2e sweep).")
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
def build(
    *,
    datasets: str | None,
    suite: str | None,
    min_context_words: int | None,
    max_context_words: int | None,
    judge: JudgeOptions,
    estimate: bool,
    check: bool,
    refine: str | None,
    refine_model: str | None,
    swap_pool: str | None,
    swap_model: str | None,
    settings: tuple[str, ...],
    **build_options: Any,
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
      d2e data build --suite piper-10k --out data/two-models --judge openai --judge-model gpt-4o \\
          --refine local --refine-model Qwen/Qwen1.5-7B-Chat     # one filters, the other refines
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
        judge=make_judge(judge, asking=not (estimate or check)),
        asking=not (estimate or check),
        settings=[*settings, *(f"{key}={value}" for key, value in flags.items() if value)],
        **build_options,  # options with the names of BuildOptions
    )
    if check:
        check_options(options)
        return
    if estimate:
        click.echo(folded(estimate_models(options)))
        return
    try:
        _print_result(build_datasets(options))
    except IncompleteBuildError as error:
        _print_result(error.result)
        raise
    finally:
        # Also after a failed build, since it was paid for; a refiner that was not made yet was not asked.
        for name, judged in {"judge": options.judge, "refiner": vars(options).get("refiner")}.items():
            if judged is not None:
                click.echo(filled(f"{name}: {judged.usage.describe()}"), err=True)


def _print_result(result: Build) -> None:
    """Print warnings, counts, filters, the comparison with the paper, the draw, and the files that were written.

    With `--quiet` only warnings, bad rows and files: the manifest has the counts.
    """
    splits = [
        (name, split, entry)
        for name, dataset in result.manifest["datasets"].items()
        for split, entry in dataset["splits"].items()
    ]
    for warning in result.warnings:
        warn(warning)
    if not is_quiet():
        _print_counts(result, splits)
    if bad := sum(entry["bad_rows"] for _, _, entry in splits):
        click.echo(f"bad rows put aside: {bad:,}")
    for path in result.files:
        click.echo(f"wrote {path}")


def _print_counts(result: Build, splits: Sequence[tuple[str, str, dict[str, Any]]]) -> None:
    manifest = result.manifest
    header = ("dataset", "split", "relation", "format", "rows")
    print_table(header, [(*key, rows) for key, rows in result.counts.items()])
    for name, split, entry in splits:
        if subsets := entry.get("rows_by_subset"):
            click.echo(f"subsets of {name} {split}: {_counted(subsets)}")
        if rewritten := entry.get("rewritten"):
            click.echo(f"cells of {name} {split}: {_counted(rewritten)}")
    filters = [
        (name, split, step["name"], f"{step['rows_in']:,} → {step['rows_out']:,} {step['unit']}")
        for name, split, entry in splits
        for step in entry["filters"]
    ]
    print_table(("dataset", "split", "filter", "in → out"), filters)
    _print_comparisons(manifest)
    groups = [((name, split), entry["rows_written"], entry) for name, split, entry in splits]
    for table in refinement_tables(("dataset", "split"), groups):
        click.echo(table.terminal() + "\n")
    for split, outcomes in manifest.get("refining", {}).items():
        click.echo(f"refined {split}: {_counted(outcomes)}")
    _print_changed(manifest)


def _print_changed(manifest: dict[str, Any]) -> None:
    """Print how many rows were swapped, became unanswerable, or got distractors, and why others were not."""
    for option, split in (("swap", "train"), ("swap-test", "test")):
        for name, entry in manifest.get(option, {"datasets": {}})["datasets"].items():
            click.echo(f"swapped {name} {split}: {entry['swapped']:,} of {entry['rows']:,} rows")
            if entry["pools"]:
                pools = (f"{count:,} from {_POOLS.get(pool, pool)}" for pool, count in entry["pools"].items())
                click.echo(f"  new answers: {', '.join(pools)}")
            _print_refused(entry)
            if split == "test" and entry["swapped"]:
                click.echo(f"  expected guesses: {_habits(entry.get('habits', {}), entry['swapped'])}")
    for option, split in UNANSWERABLE.items():
        for name, entry in manifest.get(option, {"datasets": {}})["datasets"].items():
            click.echo(f"unanswerable {name} {split}: {entry['made']:,} of {entry['rows']:,} rows")
            _print_refused(entry)
    if distractors := manifest.get("distractors"):
        click.echo(f"contexts with distractors: {_counted(distractors['rows'])}")


def _print_refused(entry: dict[str, Any]) -> None:
    for reason, count in sorted(entry["refused"].items(), key=lambda item: -item[1]):
        click.echo(f"  refused: {count:,}, {reason}")


def _print_comparisons(manifest: dict[str, Any]) -> None:
    """Print published counts and ratios with what was obtained, if the suite has some."""
    if rows := [tuple(row.values()) for row in manifest.get("published_counts", ())]:
        total = ("all", "", "", sum(row[3] for row in rows), sum(row[4] for row in rows), "")
        header = ("relation", "dataset", "format", "published", "obtained", "reason for a difference")
        print_table(header, [*rows, total])
    if mixture := manifest.get("mixture"):
        parts = [
            (name, f"{part['ratio']:.2f}", part["asked"], part["drawn"], part["reason"])
            for name, part in mixture["datasets"].items()
        ]
        ratios = sum(part["ratio"] for part in mixture["datasets"].values())
        drawn = ("all", f"{ratios:.2f}", sum(part[2] for part in parts), mixture["size"], "")
        print_table(("dataset", "ratio %", "wanted", "drawn", "reason for a difference"), [*parts, drawn])


def _habits(habits: dict[str, int], pairs: int) -> str:
    """Say how many pairs of a test row and its twin have which habit, first the most frequent of training rows."""
    known = sum(habits.values())
    shown = [f"{count:,} {answer!r}" for answer, count in list(habits.items())[:_SHOWN_HABITS]]
    if len(habits) > _SHOWN_HABITS:
        shown.append(f"{known - sum(list(habits.values())[:_SHOWN_HABITS]):,} others")
    if pairs > known:
        shown.append(f"{pairs - known:,} from the rows themselves (tag or answer)")
    return ", ".join(shown)


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())
