"""`d2e chat`."""

import sys
from pathlib import Path
from typing import Any

import click

from d2e_sft.config.decoding import MAX_ALPHA, describe
from d2e_sft.config.options import Number, decoder_option
from d2e_sft.util.errors import UserError
from d2e_sft.util.startup import preload
from d2e_sft.util.terminal import folded


@click.command()
@click.argument("model")
@click.option("--context", type=click.Path(path_type=Path), metavar="FILE", help="A text file with the first context.")
@click.option("--alpha", type=Number(0, MAX_ALPHA), help="Debias ratio. [default: as trained, else 0.5]")
@decoder_option("Decoder of the debiased answer")
@click.option("--max-new-tokens", type=click.IntRange(min=1), help="Longest answer. [default: as in `d2e eval`]")
@click.option(
    "--wording",
    type=click.Choice(["qa", "none"]),
    help="qa: questions are worded as in training; none: as they are. [default: qa for a run, else none]",
)
@click.option("--prompt-set", help="Prompt set of the wording. [default: as trained, else `default`]")
@click.option("--system", metavar="TEXT", help="System message, instead of the prompt set's.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16", "auto"]),
    help="Data type of the weights; auto: bfloat16 if it is fast here. [default: as in the recipe, else float32]",
)
def chat(model: str, *, context: Path | None, **options: Any) -> None:
    """Chat with MODEL about a context: each question is answered plainly and debiased.

    MODEL is a run folder, a checkpoint, an adapter, a Hub name or builtin:smollm2-135m-instruct. The context is set,
    replaced and shown by commands that begin with a slash (/help). From a pipe, each line is a question or a command.

    \b
    Examples:
      d2e chat runs/d2e-mini --context story.txt
      printf '/context It rained, so the road was wet.\\nWhy was it wet?\\n' | d2e chat runs/d2e-mini
    """
    from d2e_sft.chat import open_session, read_context, talk
    from d2e_sft.model.storage.hub import check_model

    text = "" if context is None else read_context(context)
    check_model(model)
    preload("transformers.modeling_utils")
    session = open_session(model, **options)
    session.context = text
    interactive = sys.stdin.isatty()
    if interactive:
        click.echo(f"{model}, decoded {describe(session.decoding.record())}. /help lists the commands.")
    failed = talk(
        session,
        read=_typed if interactive else _piped,
        write=lambda text: click.echo(text, nl=False),
        write_error=lambda text: click.echo(folded(f"d2e: error: {text}"), err=True),
        interactive=interactive,
    )
    if failed and not interactive:
        raise UserError(f"{failed} lines failed", "fix those listed above")


def _typed() -> str:
    import readline  # noqa: F401 (line editing and history for input())

    return input("> ")


def _piped() -> str:
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.removesuffix("\n")
