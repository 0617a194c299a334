"""`d2e data diagnose`: describe data before any training, and recommend a method."""

import random
import re
import shlex
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from textwrap import wrap
from typing import Any

import click

from d2e_sft.config.recipe import ModelSection
from d2e_sft.data.built import read_manifest, taggers
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import write_json, write_whole
from d2e_sft.util.terminal import filled, warn
from data_builders.build.card import build_command
from data_builders.build.options import BuildOptions
from data_builders.build.run import build
from data_builders.commands.shared import FILE, PATH
from data_builders.dataset import SampleSet, read_set
from data_builders.own_data.source import how_to_describe, is_own

_WHOLE: Any = {"break_long_words": False, "break_on_hyphens": False}
_RECIPE, _MODEL = "smollm2-135m-own", ModelSection.model_fields["name"].default  # a recipe for any rows
_DESCRIPTION = "DESCRIPTION.yaml"


@click.command()
@click.argument("data", type=PATH)
@click.option(
    "--model",
    metavar="NAME",
    help="Ask this model the questions without contexts, as `d2e data tag` does. [default: use the tags of DATA]",
)
@click.option("--max-samples", type=click.IntRange(min=1), help="Most questions for the model.  [default: 300]")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16", "auto"]),
    help="Data type of its weights. [default: as in its recipe, else float32]",
)
@click.option("--skip-bad", is_flag=True, help="Leave bad rows of a description's files out, and count them.")
@click.option("--html", metavar="FILE", type=FILE, help="Write a page.")
@click.option("--json", "json_file", metavar="FILE", type=FILE, help="Write all numbers.")
@click.option(
    "--tokenizer", metavar="NAME", default="words", show_default=True, help="Model whose tokens are counted."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of draws and folds.")
@click.pass_obj
def diagnose(
    lent: Callable[[str], Any],
    data: Path,
    *,
    model: str | None,
    max_samples: int | None,
    dtype: str | None,
    skip_bad: bool,
    html: Path | None,
    json_file: Path | None,
    tokenizer: str,
    seed: int,
) -> None:
    """Show what training on DATA can teach, and recommend a method with its reason and its command.

    DATA is a folder of `d2e data build`, a file of EventSample rows, or a description of own data (mine.yaml). Its
    training rows are described. How many answers can be guessed without the context, by a classifier of the question
    and by a model? How many are in the context? How many rows can be swapped, and why not the others? How many refined
    contexts differ, and how long are prompts? Needs scikit-learn: pip install 'd2e-sft[stats]'.

    \b
    Examples:
      d2e data diagnose data/mine --model builtin:smollm2-135m-instruct --html diagnosis.html
      d2e data diagnose mine.yaml
    """
    # Imported here, since transformers takes seconds.
    from data_builders.quality.context_free import require_sklearn
    from data_builders.quality.diagnosis import Diagnosis, is_swapped, tagged_rows
    from data_builders.quality.diagnosis import diagnose as describe
    from data_builders.quality.stats import compute_stats

    for option, value in {"--max-samples": max_samples, "--dtype": dtype}.items():
        if value is not None and model is None:
            raise UserError(f"{option} {value} without --model; no model is asked", "add --model NAME, or drop it")
    require_sklearn("the accuracy of a classifier without the context")
    data_set = _read(data, skip_bad=skip_bad)
    samples = [row for row in data_set.samples if row.split == "train"] or data_set.samples
    tests = [is_swapped(row) for row in data_set.samples if row.split == "test"]
    # All of a dataset's rows are described together, of whatever splits they are.
    together = [row.model_copy(update={"split": samples[0].split}) for row in samples]
    lengths = compute_stats([SampleSet(data_set.name, together)], tokenizer=tokenizer, seed=seed)
    habits = tagged_rows(samples)
    if model is not None:
        drawn = sorted(random.Random(seed).sample(range(len(samples)), min(max_samples or 300, len(samples))))
        habits = lent("closed_book")(model, dtype).tagged([samples[place] for place in drawn])
    by_view = {(g["dataset"], view): n for g in lengths["groups"] for view, n in g["prompt_lengths"].items()}
    places = _places(data, model, skip_bad=skip_bad)
    groups = describe(samples, habits, seed, is_own=all(map(is_own, places["names"].split(","))))
    swapped_tests = sum(tests) / len(tests) if tests else None
    result = Diagnosis(data_set.name, groups, lengths["unit"], by_view, taggers(habits), swapped_tests)
    advice = _advice(result, data, places, has_tests=bool(tests))
    for title, table in result.tables().items():
        click.echo(f"{title}\n\n{table.terminal()}\n")
    _show(advice)
    if json_file:
        write_json(json_file, {**result.to_json(), "recommended": vars(advice)})
        click.echo(f"wrote {json_file}")
    if html:
        write_whole(html, result.page(advice))
        click.echo(f"wrote {html}")


def _advice(result: Any, data: Path, places: dict[str, str], *, has_tests: bool) -> Any:
    """The advice with commands that run as printed, but for the placeholders that its notes explain."""
    advice = result.advice(places)
    if is_own(str(data)) and not advice.commands[0].startswith(places["build"]):
        advice.commands.insert(0, f"{places['build']} --out {places['data']}")
    if not has_tests:
        without = [command.replace(" --swap-test 1", "") for command in advice.commands]
        advice.commands[:] = [re.sub(r"--bench .*", "--bench TEST", command) for command in without]
        advice.notes.append("TEST stands for other rows to evaluate on, since these have no test rows.")
    if _DESCRIPTION in " ".join(advice.commands):
        description = f"a description of the rows in {data} (docs/how-to/own-data.md)"
        advice.notes.append(f"{_DESCRIPTION} stands for {description}.")
    return advice


def _show(advice: Any) -> None:
    click.echo(f"recommended: {advice.name}\n{filled(advice.reason)}")
    for command in advice.commands:
        words = " ".join(shlex.quote(word).replace(" ", "\0") for word in shlex.split(command))  # not folded in quotes
        lines = wrap(f"  $ {words}", 94, subsequent_indent="      ", **_WHOLE)
        click.echo(" \\\n".join(lines).replace("\0", " "))
    click.echo()
    for note in advice.notes:
        click.echo(filled(f"note: {note}"))


def _read(data: Path, *, skip_bad: bool) -> SampleSet:
    """The rows of a build or a file, or of a description, which is built in a temporary folder."""
    if not data.is_dir() and (remedy := how_to_describe(str(data))) and data.suffix not in (".parquet", ".jsonl"):
        raise UserError(f"{data}: a file of rows; expected a build, EventSample rows or a description", remedy)
    if not is_own(str(data)):
        if skip_bad:
            raise UserError(f"--skip-bad: {data} is no description of own data; rows are read as they are", "drop it")
        return read_set(data)
    with tempfile.TemporaryDirectory() as folder:
        built = build(BuildOptions([str(data)], out=Path(folder), skip_bad=skip_bad))
        if bad := sum(
            split["bad_rows"] for d in built.manifest["datasets"].values() for split in d["splits"].values()
        ):
            warn(f"{data}: {bad:,} bad rows are left out")
        return SampleSet(data.stem, read_set(Path(folder)).samples)


def _places(data: Path, model: str | None, *, skip_bad: bool) -> dict[str, str]:
    """What fills the commands of the advice: build of the rows, folder, start of further folders, rows, recipe.

    A description has no folder yet; README's data/NAME is left to the build that README shows.
    """
    names, folder, built = _DESCRIPTION, str(data), str(data if data.is_dir() else data.with_suffix(""))
    train, build = str(data), ""
    if is_own(str(data)):
        names, built = str(data), f"data/{data.stem}"
        folder = f"{built}-plain"
        train = f"{folder}/train.parquet"
    elif data.is_dir():
        train = f"{folder}/train.parquet"
        with suppress(UserError):  # rows of another program
            manifest = {key: part for key, part in read_manifest(data).items() if key not in ("swap", "swap-test")}
            names, build = ",".join(manifest["options"]["datasets"]), build_command(manifest)
    recipe = _RECIPE if model in (None, _MODEL) else f"{_RECIPE} model.name={shlex.quote(model)}"
    build = build or shlex.join(["d2e", "data", "build", "--datasets", names, *(["--skip-bad"] if skip_bad else [])])
    quoted = {"data": folder, "built": built, "train": train}
    return {"names": names, "build": build, "recipe": recipe} | {
        key: shlex.quote(path) for key, path in quoted.items()
    }
