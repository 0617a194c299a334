"""A number on the command line is one of its range, and NaN is of none."""

import click
import pytest
from click.testing import CliRunner

from d2e_sft.config.options import Number


@click.command()
@click.option("--alpha", type=Number(0, 10))
def _verb(alpha: float | None) -> None:
    click.echo(f"alpha {alpha}")


@pytest.mark.parametrize("value", ["0", "0.5", "10"])
def test_a_number_of_the_range_is_taken(value):
    assert CliRunner().invoke(_verb, ["--alpha", value]).output == f"alpha {float(value)}\n"


@pytest.mark.parametrize("value", ["nan", "-nan", "NaN", "inf", "-0.1", "10.1", "half"])
def test_what_is_none_of_it_is_a_usage_error_with_the_value(value):
    result = CliRunner().invoke(_verb, ["--alpha", value])
    assert result.exit_code == 2
    assert "--alpha" in result.output
    assert value.lower().lstrip("-") in result.output.lower()
