"""The `--judge…` options of a command, and the one object that it gets for them."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from d2e_sft.judge.cli_options import judge_options
from d2e_sft.judge.options import JudgeOptions
from d2e_sft.util.errors import UserError


def run(*arguments: str) -> JudgeOptions:
    got: list[JudgeOptions] = []

    @click.command()
    @click.option("--seed", type=int, default=0)
    @judge_options
    def command(*, seed: int, judge: JudgeOptions) -> None:
        """Do something."""
        got.append(judge)

    command.main(args=list(arguments), standalone_mode=False)
    return got[0]


def test_every_option_reaches_its_field() -> None:
    assert run() == JudgeOptions()
    arguments = (
        "--judge openai --judge-model m --judge-url http://h/v1 --judge-key-env K --judge-concurrency 3 "
        "--judge-price 2.5,10 --judge-timeout 9 --judge-attempts 2 --judge-max-tokens 99 --judge-cache kept"
    )
    assert run(*arguments.split()) == JudgeOptions(
        backend="openai",
        model="m",
        base_url="http://h/v1",
        key_env="K",
        concurrency=3,
        prices=(2.5, 10),
        timeout=9,
        attempts=2,
        max_tokens=99,
        cache=Path("kept"),
    )
    assert run("--judge", "openai", "--judge-model", "m", "--judge-temperature", "default").temperature is None
    assert run("--judge", "openai", "--judge-model", "m", "--judge-temperature", "0.7").temperature == 0.7
    assert run("--judge", "local", "--judge-model", "m", "--judge-dtype", "bfloat16").dtype == "bfloat16"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--judge-model m", r"--judge-model: not supported by --judge rules; expected --judge openai or local"),
        ("--judge local --judge-model m --judge-url http://h", r"--judge-url: .*expected --judge openai"),
        ("--judge openai --judge-model m --judge-dtype float16", r"--judge-dtype: .*expected --judge local"),
        ("--judge openai", r"judge 'openai' without a model; name one with --judge-model"),
        ("--judge openai --judge-model m --judge-temperature=-1", r"temperature: got '-1'"),
        ("--judge openai --judge-model m --judge-price=-1,2", r"prices.0: got '-1'"),
        ("--judge openai --judge-model m --judge-price=3", r"prices.1: missing"),
        ("--judge openai --judge-model m --judge-price=1,b", r"prices.1: got 'b'"),
        ("--judge openai --judge-model m --judge-max-cost 1", r"a limit of \$1 and no prices"),
        ("--judge openai --judge-model m --judge-concurrency 0", r"concurrency: got '0'"),
        ("--judge openai --judge-model m --judge-timeout nan", r"timeout: got 'nan'"),
        ("--judge openai --judge-model m --judge-timeout 1e15", r"timeout: got '1e15'; .* 86400"),
        ("--judge openai --judge-model m --judge-attempts 1000000", r"attempts: got '1000000'; .* 1000"),
        ("--judge openai --judge-model m --judge-concurrency 1000000", r"concurrency: got '1000000'; .* 1000"),
        ("--judge local --judge-model m --judge-temperature 0.5", r"--judge-temperature: not supported"),
    ],
)
def test_options_that_would_be_ignored_or_make_no_sense_are_refused(arguments: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        run(*arguments.split())
