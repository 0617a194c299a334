"""`d2e bench`."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from d2e_sft.config.options import Number, comma_list, lengths
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import write_json, write_whole
from d2e_sft.util.table import Table
from d2e_sft.util.terminal import folded


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def bench() -> None:
    """Measure speed and memory on this machine.

    Example: d2e bench train --contexts 150 --repeats 5
    """


def _lengths(name: str, default: str, help: str) -> Callable[[Any], Any]:
    return comma_list(name, metavar="N,N,...", default=default, read=lengths, show_default=True, help=help)


def _count(name: str, default: int, help: str) -> Callable[[Any], Any]:
    return click.option(name, type=click.IntRange(1), default=default, show_default=True, help=help)


_MODEL = click.option("--model", default="builtin:smollm2-135m-instruct", show_default=True, help="As in a recipe.")
_REPEATS = _count("--repeats", 3, "Timed runs of each engine.")
_JSON = click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Also write rows.")


@bench.command("train")
@_MODEL
@_lengths("--contexts", "150,350,700", "Tokens of the contexts.")
@_count("--samples", 8, "Micro-batch of engines that share a prefix between samples.")
@_count("--unshared-samples", 2, "Micro-batch of the other engines.")
@click.option(
    "--unrefined", type=Number(0, 1), default=0.0, show_default=True, help="Share of samples with refined = original."
)
@_REPEATS
@click.option("--precision", type=click.Choice(["float32", "bfloat16"]), default="float32", show_default=True)
@click.option("--objective", type=click.Choice(["d2e", "prefer"]), default="d2e", show_default=True)
@click.option("--trl", is_flag=True, help="Also TRL's trainer (pip install 'd2e-sft[bench]').")
@comma_list("--engines", metavar="NAME,...", default="", help="Only these, with their SFT baselines.")
@click.option("--profile", is_flag=True, help="Also show where a step's time goes, by torch's profiler.")
@_JSON
def train(model: str, engines: str, json_file: Path | None, **options: Any) -> None:
    """Compare a D²E training step with plain SFT, engine by engine.

    \b
    sft_plain       transformers' own: a row per sample, logits at every position
    sft             plain SFT in this engine, logits only at answers
    sft_shared      the same, the common prefix of the samples is computed once
    three_forwards  D²E with a forward per view
    batched         D²E with three padded rows per sample
    shared_prefix   D²E, the views of a sample share their prefix
    shared_batch    D²E, all views of all samples share theirs (what training uses)
    trl, trl_packed with --trl: TRL's SFTTrainer without and with packing, loss only on completions

    With --objective prefer, batched, shared_prefix and shared_batch compute DPO's loss of pairs of answers, and trl is
    TRL's DPOTrainer. All get the reference's log-probabilities with the rows, and a sample is a pair.

    Samples are random tokens: a prefix of 130, the context, a question of 30, an answer of 10; the refined context has
    0.4 of the context's length. Engines take turns; times are medians of forward and backward. Their ratios are of
    processor time, on a GPU of the clock's. Memory is the peak above the process without the model. On two CPU cores
    the defaults take half an hour or more.

    Example: d2e bench train --contexts 150 --repeats 5 --json bench.json
    """
    from d2e_sft.bench.train import bench_training

    rows = bench_training(model, engines=_names(engines), **options)
    _report(rows, json_file)


@bench.command("decode")
@_MODEL
@_lengths("--prompts", "200,600", "Tokens of a prompt.")
@_lengths("--batches", "1,8", "Prompts decoded together.")
@_lengths("--new-tokens", "10,64", "Tokens of an answer.")
@_REPEATS
@click.option("--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), default="float32", show_default=True)
@click.option("--compile", "compiled", is_flag=True, help="Compile the step of this engine; for GPUs.")
@click.option("--vllm", is_flag=True, help="Compare plain and debiased inside vLLM; a batch is all prompts of a run.")
@_JSON
def decode(model: str, vllm: bool, json_file: Path | None, **options: Any) -> None:
    """Compare debiased with plain decoding and with transformers' guidance.

    \b
    plain               this engine, α = 0
    debiased            this engine, α = 0.5
    guidance            transformers' generate(guidance_scale=2, negative_prompt_ids=…), same tokens
    transformers plain  transformers' generate

    Prompts are random tokens: a shared prefix of 130, a context, a question of 30; the imagined prompt lacks the
    context. Engines take turns; times are medians of a whole batch, prompts included. In vLLM every run starts from an
    empty prefix cache.

    Example: d2e bench decode --prompts 600 --batches 8 --repeats 5 --json bench.json
    """
    from d2e_sft.bench.decode import bench_decoding

    rows = bench_decoding(model, in_vllm=vllm, **options)
    _report(rows, json_file)


@bench.command("gpu")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default="runs/gpu", show_default=True)
@comma_list("--shapes", help="Names separated by commas. [default: four, from 135M to 7B parameters]")
@click.option("--minutes", type=Number(0.1), default=8.5, show_default=True, help="No case begins after this time.")
@click.option("--rehearse", is_flag=True, help="Use tiny shapes, on any device; D2E_DEVICE=cpu: on the CPU.")
def gpu(out: Path, shapes: str | None, minutes: float, rehearse: bool) -> None:
    """Measure training and decoding in the shapes of published models, with random weights, on one GPU.

    \b
    training    a step of plain SFT and of D²E, and TRL's SFTTrainer if it is installed
    float16     a step with the gradient scaler
    preference  a step of DPO, and TRL's DPOTrainer
    evaluation  prompts that enter as others end, and batches that wait for their longest answer
    refiner     contexts scored by likelihood, in one packed row and one at a time
    decoding    an answer, plain and debiased, and transformers' generate

    Training and decoding take all shapes, the others the first one. Needs no network. Writes OUT/bench-gpu.json after
    every case, and OUT/bench-gpu.md. Model FLOP utilisation is a share of the dense bfloat16 rate in the data sheet
    or, if that is unknown, of the rate of a large product.

    Example: d2e bench gpu --out runs/gpu
    """
    from d2e_sft.bench.gpu import bench_gpu, gpu_text

    out.mkdir(parents=True, exist_ok=True)
    file = out / "bench-gpu.json"
    report = bench_gpu(file=file, seconds=60 * minutes, shapes=_names(shapes or ""), rehearse=rehearse)
    write_whole(out / "bench-gpu.md", gpu_text(report, Table.markdown) + "\n")
    click.echo(folded(gpu_text(report, Table.terminal)))
    click.echo(f"wrote {file} and bench-gpu.md")
    if report.failed:
        raise UserError(f"d2e bench gpu: {', '.join(report.failed)} failed", "the reasons are listed above")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")] if text else []


def _report(rows: Sequence[Any], file: Path | None) -> None:
    from d2e_sft.bench.harness import rows_table

    click.echo(rows_table(rows).terminal())
    if file is not None:
        write_json(file, {"rows": list(rows)})
        click.echo(f"wrote {file}")
