"""`d2e bench`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from d2e_sft.config.options import Number
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import write_json, write_whole
from d2e_sft.util.table import Table
from d2e_sft.util.terminal import folded


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def bench() -> None:
    """Measure speed and memory on this machine.

    Example: d2e bench train --contexts 150 --repeats 5
    """


class _Numbers(click.ParamType):
    """Whole numbers with commas between them, none below `least`."""

    name = "N,N,..."

    def __init__(self, expected: str, least: int = 1) -> None:
        self.expected = expected
        self.least = least

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        if isinstance(value, list):
            return value
        try:
            numbers = [int(part) for part in str(value).split(",")]
        except ValueError:
            numbers = [self.least - 1]
        if min(numbers) < self.least:
            self.fail(f"got {value!r}; expected {self.expected}", param, ctx)
        return numbers


_LENGTHS = _Numbers("lengths in tokens, for example 150,350,700")
_WORKERS = _Numbers("numbers of processes, for example 0,2", least=0)


def _model(help: str) -> Callable[[Any], Any]:
    return click.option("--model", default="builtin:smollm2-135m-instruct", show_default=True, help=help)


def _repeats(of_what: str) -> Callable[[Any], Any]:
    help = f"Timed {of_what}."
    return click.option("--repeats", type=click.IntRange(1), default=3, show_default=True, help=help)


def _json(what: str) -> Callable[[Any], Any]:
    file = click.Path(dir_okay=False, path_type=Path)
    return click.option("--json", "json_file", type=file, help=f"Write the {what} here too.")


@bench.command("train")
@_model("As model.name of a recipe.")
@click.option("--contexts", type=_LENGTHS, default="150,350,700", show_default=True, help="Tokens of the contexts.")
@click.option("--samples", type=click.IntRange(1), default=8, show_default=True, help="A micro-batch that shares.")
@click.option(
    "--unshared-samples", type=click.IntRange(1), default=2, show_default=True, help="A micro-batch that does not."
)
@_repeats("steps of each engine")
@click.option("--precision", type=click.Choice(["float32", "bfloat16"]), default="float32", show_default=True)
@click.option(
    "--trl", is_flag=True, help="TRL's SFTTrainer too, with and without packing (pip install 'd2e-sft[bench]')."
)
@click.option(
    "--engines", metavar="NAME,...", default="", help="These alone, with the SFT that each is compared with."
)
@click.option("--profile", is_flag=True, help="Also where a step's time goes, by torch's profiler.")
@_json("rows")
def train(model: str, engines: str, json_file: Path | None, **options: Any) -> None:
    """Compare a D²E training step with plain SFT, engine by engine.

    \b
    sft_plain       transformers' own: a row a sample, logits at every position
    sft             plain SFT in this engine, logits at answers alone
    sft_shared      the same, the samples' common prefix computed once
    three_forwards  D²E with a forward a view
    batched         D²E with three padded rows a sample
    shared_prefix   D²E, the views of a sample share their prefix
    shared_batch    D²E, all views of all samples share theirs (what training uses)
    trl, trl_packed with --trl: TRL's SFTTrainer, loss on completions alone, without and with packing

    Samples are random tokens: a prefix of 130, the context, a question of 30, an answer of 10; the refined context has
    0.4 of the context's length. Engines take turns; times are medians of forward and backward, memory is the peak
    above the process without the model. On two CPU cores the defaults take half an hour or more.

    Example: d2e bench train --contexts 150 --repeats 5 --json bench.json
    """
    from d2e_sft.bench.train import as_table, bench_training, profile_table

    only = [name.strip() for name in engines.split(",")] if engines else ()
    measured = bench_training(model, only=only, progress=lambda line: click.echo(line, err=True), **options)
    if options["profile"]:
        click.echo(profile_table(measured).terminal() + "\n")
    _report(as_table(measured), measured, json_file)


@bench.command("decode")
@_model("As model.name of a recipe.")
@click.option("--prompts", type=_LENGTHS, default="200,600", show_default=True, help="Tokens of a prompt.")
@click.option("--batches", type=_LENGTHS, default="1,8", show_default=True, help="Prompts decoded together.")
@click.option("--new-tokens", type=_LENGTHS, default="10,64", show_default=True, help="Tokens of an answer.")
@_repeats("runs of each engine")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), default="float32", show_default=True)
@click.option("--compile", "compiled", is_flag=True, help="Compile the step of this engine; for GPUs.")
@_json("rows")
def decode(model: str, json_file: Path | None, **options: Any) -> None:
    """Compare debiased with plain decoding and with transformers' guidance.

    \b
    plain               this engine, α = 0
    debiased            this engine, α = 0.5
    guidance            transformers' generate(guidance_scale=2, negative_prompt_ids=…), same tokens
    transformers plain  transformers' generate

    Prompts are random tokens: a prefix of 130 that all begin with, a context, a question of 30; the imagined prompt
    lacks the context. Engines take turns; times are medians of a whole batch, prompts included.

    Example: d2e bench decode --prompts 600 --batches 8 --repeats 5 --json bench.json
    """
    from d2e_sft.bench.decode import as_table, bench_decoding

    measured = bench_decoding(
        model,
        progress=lambda row: click.echo(
            f"prompt {row.prompt}, batch {row.batch}, {row.new_tokens} new: "
            f"{row.debiased_to_plain} × plain, {row.debiased_to_guidance} × guidance",
            err=True,
        ),
        **options,
    )
    _report(as_table(measured), measured, json_file)


@bench.command("gpu")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default="runs/gpu", show_default=True)
@click.option("--shapes", help="Names with commas between them. [default: four, from 135M to 7B parameters]")
@click.option("--minutes", type=Number(0.1), default=8.5, show_default=True, help="Nothing is begun after as many.")
@click.option("--rehearse", is_flag=True, help="Tiny shapes, on a CPU too; so does D2E_DEVICE=cpu.")
def gpu(out: Path, shapes: str | None, minutes: float, rehearse: bool) -> None:
    """Measure training and decoding in the shapes of published models, with random weights, on one GPU.

    Needs no network. Writes OUT/bench-gpu.json after every case, and OUT/bench-gpu.md. Model FLOP utilisation is a
    share of the data sheet's dense bfloat16 rate where that is known, else of what a large product reaches.

    Example: d2e bench gpu --out runs/gpu
    """
    from d2e_sft.bench.gpu import as_text, bench_gpu

    out.mkdir(parents=True, exist_ok=True)
    report = bench_gpu(
        file=out / "bench-gpu.json",
        seconds=60 * minutes,
        shapes=[name.strip() for name in shapes.split(",")] if shapes else (),
        rehearse=rehearse or os.environ.get("D2E_DEVICE") == "cpu",
        progress=lambda line: click.echo(line, err=True),
    )
    write_whole(out / "bench-gpu.md", as_text(report, Table.markdown) + "\n")
    click.echo(folded(as_text(report, Table.terminal)))
    click.echo(f"wrote {out / 'bench-gpu.json'} and bench-gpu.md")
    if report.failed:
        raise UserError(f"d2e bench gpu: {', '.join(report.failed)} failed", "the reasons stand above")


@bench.command("growth")
@click.option("--precision", type=click.Choice(["float32", "bfloat16"]), default="float32", show_default=True)
@_json("rows")
def growth(precision: Any, json_file: Path | None) -> None:
    """Show how a training step's memory grows with context, samples, vocabulary and model.

    Estimated from tensors without data: nothing is computed, and 1.7B parameters need no memory. batch: samples ×
    tokens of a context; words: of the vocabulary; tokens: of the packed row; then MiB of weights (gradients take as
    much, AdamW twice) and of activations: D²E, plain SFT, D²E with gradient checkpointing. About five minutes.

    Example: d2e bench growth --json growth.json
    """
    from d2e_sft.bench.growth import as_table, bench_growth

    rows = bench_growth(
        precision=precision, progress=lambda row: click.echo(f"{row.grows}: {row.tokens:,} tokens", err=True)
    )
    _report(as_table(rows), rows, json_file)


@bench.command("batches")
@click.option("--contexts", type=_LENGTHS, default="150,350,700", show_default=True, help="Tokens of the contexts.")
@click.option("--samples", type=click.IntRange(1), default=8, show_default=True, help="A micro-batch.")
@click.option("--workers", type=_WORKERS, default="0,2", show_default=True, help="As train.dataloader_num_workers.")
@click.option("--count", type=click.IntRange(1), default=4000, show_default=True, help="Samples of a pass.")
@_repeats("passes of each setting")
@_json("rows")
def batches(json_file: Path | None, **options: Any) -> None:
    """Measure how many samples a second the input pipeline reads and packs into micro-batches.

    A training waits for it where it is slower than the model. workers: processes that make batches; 0: the training's
    own. Samples are those of d2e bench train, three views each; tokens are those of the packed rows; the three rates
    are median, lowest and highest.

    Example: d2e bench batches --contexts 350 --workers 0,2 --repeats 5
    """
    from d2e_sft.bench.batches import as_table, bench_batches

    if options["count"] < 2 * options["samples"]:
        raise click.BadParameter(f"{options['count']} is less than two micro-batches", param_hint="--count")
    rows = bench_batches(
        progress=lambda row: click.echo(
            f"context {row.context}, {row.workers} workers: {row.samples_a_second:,} samples/s", err=True
        ),
        **options,
    )
    _report(as_table(rows), rows, json_file)


@bench.command("vllm")
@_model("As for d2e serve.")
@click.option("--prompts", type=click.IntRange(1), default=200, show_default=True)
@click.option("--shortest", type=click.IntRange(72), default=200, show_default=True, help="Tokens of a prompt.")
@click.option("--longest", type=click.IntRange(72), default=600, show_default=True, help="Tokens of a prompt.")
@click.option("--new-tokens", type=click.IntRange(1), default=32, show_default=True, help="Tokens of each answer.")
@_repeats("runs of each way")
@click.option("--dtype", default="auto", show_default=True, help="Of the weights; auto: as stored.")
@click.option("--tensor-parallel-size", type=click.IntRange(1), default=1, show_default=True)
@_json("figures")
def vllm(model: str, dtype: str, tensor_parallel_size: int, json_file: Path | None, **sizes: int) -> None:
    """Compare debiased with plain decoding inside vLLM, on one engine, prefix caching on.

    Prompts are random tokens: a shared prefix of 40, a context, a question of 30; the imagined prompt lacks the
    context. Both ways start from an empty prefix cache and take turns; times are medians.

    Example: d2e bench vllm --prompts 200 --repeats 3 --json bench-vllm.json
    """
    from d2e_sft.bench.vllm_throughput import as_table, bench_vllm
    from d2e_sft.vllm.engine import require_vllm

    if sizes["longest"] < sizes["shortest"]:
        raise click.BadParameter(f"{sizes['longest']} is less than --shortest", param_hint="--longest")
    require_vllm()
    from d2e_sft.vllm.offline import load_llm

    llm = load_llm(
        model,
        dtype=dtype,
        tensor_parallel_size=tensor_parallel_size,
        max_model_len=sizes["longest"] + sizes["new_tokens"] + 1,
        enable_prefix_caching=True,
    )
    measured = bench_vllm(llm, progress=lambda line: click.echo(line, err=True), **sizes)
    _report(as_table(measured), [measured], json_file)


def _report(table: Table, measured: Sequence[Any], file: Path | None) -> None:
    click.echo(table.terminal())
    if file is not None:
        write_json(file, {"rows": [asdict(row) for row in measured]})
        click.echo(f"wrote {file}")
