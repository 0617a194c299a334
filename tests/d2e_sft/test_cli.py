"""The command line as a whole: every verb explains itself with an example, and is imported only when it is called."""

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import d2e_sft
from d2e_sft import cli
from d2e_sft.cli import d2e
from d2e_sft.util.terminal import WIDTH
from tests.command import call, output_of, refusal_of, verbs

ROOT = Path(cli.__file__).parents[1]


@pytest.mark.parametrize("words", verbs(), ids=" ".join)
def test_every_verbs_help_fits_and_its_example_has_only_options_that_there_are(
    words: tuple[str, ...],
) -> None:
    shown = CliRunner().invoke(d2e, [*words, "--help"], prog_name="d2e")
    assert shown.exit_code == 0, shown.output
    assert max(map(len, shown.output.splitlines())) <= WIDTH
    assert re.search(rf"Examples?:\s+.*?d2e {re.escape(' '.join(words))}", shown.output, re.DOTALL), shown.output
    command = verbs()[words]
    if command.context_settings.get("ignore_unknown_options") or isinstance(command, click.Group):
        return  # the options are another program's, or a subcommand's
    examples = (command.help or "").partition("Example")[2].split("|")[0]
    known = {name for parameter in command.params for name in parameter.opts} | {"--debug"}
    assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", examples)) <= known


def test_every_verb_is_listed_with_a_line() -> None:
    assert len(verbs()) > 30
    printed = output_of("--help")
    for verb in d2e.list_commands(click.Context(d2e)):
        assert re.search(rf"^\w*\s+{verb}\s+\S", printed, re.MULTILINE), verb
    assert max(map(len, printed.splitlines())) <= 80
    groups = re.findall(r"^(\w+)  +[a-z]", printed, re.MULTILINE)
    assert groups == ["Start", "Data", "Train", "Evaluate", "Look", "Publish"]


def test_an_argument_that_is_not_utf8_is_refused_as_no_record_could_name_it(tmp_path: Path) -> None:
    assert refusal_of("eval", "some/model", "--bench", tmp_path / "rows\udcff.jsonl").count("not UTF-8") == 1


def test_completing_a_verb_imports_none_of_them() -> None:
    code = (
        "import sys, d2e_sft.cli as c\n"
        "from click.shell_completion import BashComplete\n"
        "print([item.value for item in BashComplete(c.d2e, {}, 'd2e', 'X').get_completions([], 'q')])\n"
        "print([name for name in sys.modules if '.commands' in name or name == 'torch'])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
    )
    assert run.stdout == "['quickstart']\n[]\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("eval", "model", "--alpha", "KEY"), ("train", "d2e-mini", "train.output_dir=runs/KEY"), ("KEY",),
        ("report", "run", "--out", "KEY.html"),
    ],
)  # fmt: skip
def test_a_key_among_the_words_is_refused(monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]) -> None:
    monkeypatch.setenv("GITHUB_PAT", "ghp_0123456789abcdef")
    called = call(*(one.replace("KEY", "ghp_0123456789abcdef") for one in arguments))
    assert called.status == 1
    assert "an argument contains the value of $GITHUB_PAT" in called.err
    assert "0123456789" not in called.out + called.err


def test_the_option_for_a_key_may_have_it_but_no_error_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("D2E_API_KEY", "0123456789abcdef")
    called = call("serve", "--api-key", "0123456789abcdef", "--port", "--api-key=0123456789abcdef")
    assert called.status == 2
    assert "[D2E_API_KEY]" in called.err
    assert "0123456789" not in called.err


def test_the_package_imports_nothing_heavy() -> None:
    heavy = ("torch", "transformers", "pydantic", "yaml", "datasets")
    code = f"import d2e_sft, sys; dir(d2e_sft); print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_every_name_is_where_it_is_said_to_be() -> None:
    assert {"D2ETrainer", "D2EConfig", "load_model", "generate_debiased", "EventSample"} <= set(d2e_sft.__all__)
    for name in d2e_sft.__all__:
        assert getattr(d2e_sft, name).__name__ == name
        assert name in dir(d2e_sft)
    with pytest.raises(AttributeError, match="no attribute 'D3ETrainer'"):
        d2e_sft.D3ETrainer  # noqa: B018
