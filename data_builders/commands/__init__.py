"""`d2e data`: the command line of the builders, one file per command."""

import click

from data_builders.commands.boxes import boxes
from data_builders.commands.build import build
from data_builders.commands.check import check
from data_builders.commands.convert import convert
from data_builders.commands.diagnose import diagnose
from data_builders.commands.download import download
from data_builders.commands.export import export
from data_builders.commands.list_datasets import list_datasets
from data_builders.commands.push import push
from data_builders.commands.show import show
from data_builders.commands.stats import stats


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def data() -> None:
    """Build, check and publish EventSample data.

    Example: d2e data build --datasets boxes --out data/boxes
    """


for _verb in (list_datasets, build, boxes, download, check, convert, export, push, show, stats, diagnose):
    data.add_command(_verb)
