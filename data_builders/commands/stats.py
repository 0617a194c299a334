"""`d2e data stats`: print statistics of data sets."""

from pathlib import Path

import click

from d2e_sft.config.recipe import ModelSection
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import write_json
from data_builders.commands.shared import FILE, PATH
from data_builders.dataset import read_set


@click.command()
@click.argument("data", metavar="DATA...", nargs=-1, required=True, type=PATH)
@click.option(
    "--raw",
    type=PATH,
    default=Path("data/raw"),
    envvar="D2E_RAW",
    show_envvar=True,
    show_default=True,
    help="Folder with the raw files of a system, as SYSTEM/FILE.",
)
@click.option("--json", "json_file", metavar="FILE", type=FILE, help="Write all numbers.")
@click.option(
    "--tokenizer",
    metavar="NAME",
    default=ModelSection.model_fields["name"].default,
    show_default=True,
    help="Model whose tokens are counted; `words` counts words and needs no model.",
)
@click.option("--prompt-set", default="default", show_default=True, help="Wording of the prompts.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the hypothesis-only baseline.")
def stats(
    data: tuple[Path, ...],
    raw: Path,
    json_file: Path | None,
    tokenizer: str,
    prompt_set: str,
    seed: int,
) -> None:
    """Print counts by dataset, relation and format, prompt lengths, nli labels and what the refiner keeps.

    DATA are .parquet or .jsonl files of EventSample rows, or folders of `d2e data build`. Lengths are those of the
    prompts of the three views. For nli data, "hypothesis only" is the accuracy of a classifier without the context.
    Rows with the same premise are never in both its training and its test part. It needs scikit-learn, and is left out
    without.

    DATA may also be crepe, wiqa, openpi2 or boxes: the counts of the system's raw files beside those of its paper.

    \b
    Examples:
      d2e data stats data/piper-10k --json piper-10k.json
      d2e data stats crepe
    """
    from data_builders.quality.stats import compute_stats, stats_tables
    from data_builders.quality.systems import SYSTEMS, system_tables

    if systems := [str(path) for path in data if str(path) in SYSTEMS]:
        if len(systems) != len(data) or json_file:
            raise UserError(f"{systems[0]}: a system is counted by itself", "drop other DATA and --json")
        for table in (table for name in systems for table in system_tables(name, raw / name)):
            click.echo(table.terminal() + "\n")
        return
    sets = [read_set(path) for path in data]
    numbers = compute_stats(sets, tokenizer=tokenizer, prompt_set=prompt_set, seed=seed)
    for table in stats_tables(numbers):
        click.echo(table.terminal() + "\n")
    if json_file:
        write_json(json_file, numbers)
        click.echo(f"wrote {json_file}")
