"""`d2e inspect`."""

from pathlib import Path
from typing import Any

import click

from d2e_sft.config.decoding import MAX_ALPHA
from d2e_sft.config.options import Number
from d2e_sft.data.sample import pick_samples, read_samples
from d2e_sft.model.storage.hub import check_model
from d2e_sft.util.errors import UserError
from d2e_sft.util.startup import preload
from eval.commands.eval_options import eval_option


@click.command()
@click.argument("model")
@click.option("--bench", metavar="PATH", help="A folder of `d2e data build`, or a file of EventSample rows.")
@click.option("--sample", "names", multiple=True, metavar="ID", help="Which of its samples; repeatable.")
@click.option(
    "--samples",
    "count",
    type=click.IntRange(1, 50),
    default=3,
    show_default=True,
    help="Samples to draw.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the draw.")
@click.option("--context", help="Your own context, instead of --bench.")
@click.option("--question", help="The question about it.")
@click.option("--format", "fmt", type=click.Choice(["qa", "nli"]), default="qa", show_default=True, help="Its format.")
@click.option("--alpha", type=Number(0, MAX_ALPHA), help="Start of the slider. [default: as trained, or 0.5]")
@click.option("--prompt-set", help="Prompt wording. [default: as trained, or `default`]")
@click.option(
    "--along",
    type=click.Choice(["decoded", "gold"]),
    default="decoded",
    show_default=True,
    help="Show the tokens of the model's own answer, or of the gold one.",
)
@click.option("--max-new-tokens", type=click.IntRange(1, 512), default=48, show_default=True, help="Longest answer.")
@eval_option("overlong")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), default=Path("inspect.html"), show_default=True
)
def inspect(
    model: str,
    *,
    bench: str | None,
    names: tuple[str, ...],
    count: int,
    seed: int,
    context: str | None,
    question: str | None,
    fmt: Any,
    out: Path,
    **options: Any,
) -> None:
    """Write a page with MODEL's token probabilities with and without the context, and a slider for α.

    MODEL is a run folder, a checkpoint, an adapter, a Hub name or builtin:smollm2-135m-instruct.

    Example: d2e inspect runs/d2e-mini --bench data/mini --samples 5 --out inspect.html
    """
    if (bench is None) == (context is None and question is None):
        raise UserError("expected either --bench, or --context and --question", "name rows, or ask your own question")
    if bench is None:
        if not (context and context.strip() and question and question.strip()):
            raise UserError("--context and --question: expected both, with text")
        from eval.pages.demo.question import Question

        samples = [Question(fmt, context, question).sample()]
        if options["along"] == "gold":
            raise UserError("--along gold: your own question has no gold answer", "use --along decoded")
    else:
        from eval.run.benchmark import locate_benchmark

        samples = pick_samples(read_samples(locate_benchmark(bench).file), names, count, seed, option="--sample")
    check_model(model)
    preload("transformers.modeling_utils")
    from eval.pages.inspect import InspectOptions, inspect_samples

    cut = inspect_samples(model, samples, out, InspectOptions(**options, graded=bench is not None))
    click.echo(f"wrote {out}" + (f"; contexts cut to fit the model: {cut}" if cut else ""))
