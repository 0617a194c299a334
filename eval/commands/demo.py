"""`d2e demo`."""

from typing import Any

import click

from d2e_sft.config.decoding import MAX_ALPHA
from d2e_sft.config.options import ADDRESS, Number, address_options
from d2e_sft.model.storage.hub import check_model
from d2e_sft.server.start import ServeOptions, require_starlette, warn_if_open
from d2e_sft.util.startup import preload
from d2e_sft.util.terminal import say
from eval.run.benchmark import locate_benchmark
from eval.run.options import EvalOptions


@click.command()
@click.argument("model")
@click.option("--alpha", type=Number(0, MAX_ALPHA), help="Start of the slider. [default: as trained, or 0.5]")
@click.option("--prompt-set", help="Prompt wording. [default: as trained, or `default`]")
@click.option("--max-new-tokens", type=click.IntRange(1, 4096), help="Longest answer; default: as `d2e eval`.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16", "auto"]),
    help="Data type of the weights; auto: bfloat16 if it is fast here. [default: as in the recipe, else float32]",
)
@click.option("--bench", metavar="PATH", help="Examples from here: a folder of `d2e data build`, or a file of rows.")
@click.option("--samples", type=click.IntRange(1, 50), default=8, show_default=True, help="Number of examples.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the draw.")
@address_options(7860)
def demo(model: str, *, bench: str | None, samples: int, seed: int, **options: Any) -> None:
    """Serve a web page to ask MODEL about a context: plain and debiased answers side by side, with a slider for α.

    MODEL is a run folder, a checkpoint, an adapter, a Hub name or builtin:smollm2-135m-instruct.
    Without --bench the examples are test rows of the data the run was trained on, if they still exist.

    Example: d2e demo runs/d2e-mini --bench data/mini --port 7861
    """
    require_starlette("d2e demo", "demo")
    check_model(model)
    if bench is not None:
        locate_benchmark(bench)
    say(f"loading {model} …", err=True)
    preload("transformers.modeling_utils")
    from eval.pages.demo.page import serve_demo
    from eval.pages.demo.question import examples_for

    where = ServeOptions(**{name: options.pop(name) for name in ADDRESS})
    warn_if_open(where)
    serve_demo(model, EvalOptions(**options), examples_for(model, bench, samples, seed), where)
