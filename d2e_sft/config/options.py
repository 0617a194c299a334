"""Option types that click lacks, and options that several commands share."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from d2e_sft.config.decoding import DECODERS
from d2e_sft.util.errors import UserError, did_you_mean

ADDRESS = ("host", "port", "allow_hosts", "allow_origins")  # the parameters of `address_options`
_OUT = f"{__name__}.out"


class Number(click.FloatRange):
    """A number in a range; unlike click's own, it rejects NaN."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            bounds = [f"{word} {end:g}" for word, end in (("from", self.min), ("to", self.max)) if end is not None]
            self.fail(f"{value} is not a number in the range {' '.join(bounds)}.", param, ctx)
        return number


def comma_list(
    *names: str, default: str | None = None, read: Callable[[str, str], Any] = lambda _, text: text, **settings: Any
) -> Callable[[Any], Any]:
    """Return a click option whose value is a text with commas; where the option is repeated, the texts add up.

    `read` turns the option's name and its text into the value.
    """

    def joined(_: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> Any:
        return read(option.opts[0], ",".join(texts)) if texts else None

    defaults = None if default is None else [default]
    return click.option(*names, multiple=True, default=defaults, callback=joined, **settings)


def lengths(_: str, text: str) -> list[int]:
    """Read positive whole numbers, separated by commas."""
    numbers = [int(part) if part.strip().isdecimal() else 0 for part in text.split(",")]
    if 0 in numbers:
        raise click.BadParameter(f"got {text!r}; expected lengths in tokens, for example 150,350,700")
    return numbers


class OneOf(click.Choice[str]):
    """A choice whose error suggests the nearest one."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        return super().get_invalid_choice_message(value, ctx) + did_you_mean(str(value), map(str, self.choices))


def decoder_option(
    meaning: str, *names: str, custom: str = ", or a custom module:function", **settings: Any
) -> Callable[[Any], Any]:
    """Return the click option `--decoder`, whose help is `meaning` and the list of decoders."""
    text = f"{meaning}: {', '.join(DECODERS)}{custom}. [default: d2e]"
    return click.option("--decoder", *names, metavar="NAME[:KEY=VALUE,…]", help=text, **settings)


def address_options(port: int) -> Callable[[Any], Any]:
    """Return a decorator that adds a server's options: its address, with `port` as the default, and who may use it."""
    several = functools.partial(click.option, multiple=True)
    page = "Web page that may send requests, for example https://app.example. *: any."
    options = (
        click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on."),
        click.option("--port", type=click.IntRange(1, 65535), default=port, show_default=True),
        several(
            "--allow-host", "allow_hosts", metavar="NAME", help="Further name of the server, for proxies. *: any."
        ),
        several("--allow-origin", "allow_origins", metavar="ORIGIN", callback=_origins, help=page),
    )
    return lambda command: functools.reduce(lambda wrapped, option: option(wrapped), reversed(options), command)


def _origins(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if value != "*" and (value.count("/") != 2 or not all(value.partition("://"))):
            raise click.BadParameter(f"got {value!r}; expected * or scheme://name[:port], without a path")
    return tuple(value.lower() for value in values)


def out_argument(name: str = "out", *, metavar: str = "OUT", required: bool = True) -> Callable[[Any], Any]:
    """Return a decorator that adds the place to write to: an argument, also accepted as `--out`."""

    def by_option(context: click.Context, _: click.Parameter, value: Path | None) -> None:
        context.meta[_OUT] = value

    def by_argument(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:
        by_option = context.meta.get(_OUT)
        if value is not None and by_option is not None:
            raise click.UsageError(f"{metavar} {value} and --out {by_option}: expected one of them.", context)
        if required and value is None and by_option is None:
            raise click.MissingParameter(ctx=context, param=parameter)
        return by_option if value is None else value

    kind: Any = click.Path(path_type=Path)
    option = click.option(
        "--out",
        "_out",
        expose_value=False,
        is_eager=True,
        callback=by_option,
        type=kind,
        help=f"The same as {metavar.strip('[]')}.",
    )
    argument = click.argument(name, metavar=metavar, required=False, callback=by_argument, type=kind)
    return lambda command: argument(option(command))


def given_options(context: click.Context) -> dict[str, str]:
    """Return the flag of each parameter that was given on the command line, by the parameter's name."""
    return {
        str(parameter.name): parameter.opts[0]
        for parameter in context.command.params
        if context.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE
    }


def reject_unused(option: str, chosen: str, users: Mapping[str, Sequence[str]]) -> None:
    """Raise UserError for a given option that only other values of `option` use (`users`: parameter → values)."""
    for name, flag in given_options(click.get_current_context()).items():
        values = users.get(name, (chosen,))
        if chosen not in values:
            raise UserError(
                f"{flag}: not supported by {option} {chosen}; expected {option} {' or '.join(values)}",
                remedy=f"drop it, or add {option} {values[0]}",
            )
