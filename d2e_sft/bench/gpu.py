"""`d2e bench gpu`: training, evaluation and decoding in the shapes of published models on one accelerator, in minutes.

Weights are random, so nothing is downloaded. Every case is written to the file as soon as it is measured; a case that
does not fit the memory or the time is listed as skipped. A rehearsal runs tiny shapes, to test the bench itself.
"""

import gc
import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from d2e_sft.bench.decode import bench_decoding, random_pairs
from d2e_sft.bench.harness import Row, in_turns, open_model, rows_table
from d2e_sft.bench.peers import trl_is_missing
from d2e_sft.bench.train import PREFIX, QUESTION, bench_training, synthetic_rows
from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.config.recipe import Precision
from d2e_sft.decoding.generation import generate
from d2e_sft.decoding.likelihood import score
from d2e_sft.decoding.pairs import PromptPair, TokenPair, finished
from d2e_sft.model.device import timed, usable_device
from d2e_sft.model.shapes import SHAPES, Work, random_model
from d2e_sft.train.dry_run.cards import CARDS
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import write_json
from d2e_sft.util.table import Table
from d2e_sft.util.terminal import say

Cases = Mapping[str, Callable[[], Iterable[Row]]]
_PACKAGES = ("torch", "transformers", "accelerate", "peft", "trl", "triton")
_CONTEXTS = 8  # contexts of a sample that the refiner scores
_ENDS = 8  # every eighth token of the vocabulary ends an answer, so that answers of random weights differ in length


@dataclass(frozen=True)
class GpuSizes:
    """What to measure: a micro-batch to train on for each shape, and batches to decode."""

    training: dict[str, tuple[int, int]]  # shape → samples, tokens of a context
    batches: tuple[int, ...]
    prompt: int
    new_tokens: int
    repeats: int
    precision: Precision
    evaluated: int  # samples; more than run at a time, so prompts wait
    refined: int


# Micro-batches of 3 to 9 thousand tokens: enough to fill an accelerator of 80 GB and up, weights in float32.
ACCELERATOR = GpuSizes(
    training={"smollm2-135m": (16, 350), "qwen1.5-7b": (8, 350), "qwen3-0.6b": (16, 350), "qwen3-4b": (8, 350)},
    batches=(8, 32), prompt=600, new_tokens=32, repeats=5, precision="bfloat16", evaluated=80, refined=8,
)  # fmt: skip
REHEARSAL = GpuSizes(
    training={"tiny": (3, 30)}, batches=(2,), prompt=PREFIX + QUESTION + 20, new_tokens=4, repeats=2,
    precision="float32", evaluated=66, refined=2,
)  # fmt: skip


@dataclass
class Report:
    """The rows of several cases; `facts` say what the figures depend on, `skipped` why a case was not measured."""

    facts: dict[str, Any]
    date: str = ""
    rows: dict[str, list[Row]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def failed(self) -> list[str]:
        """Return the cases that ended in an error, such as engines that disagree on the loss."""
        return [case for case, reason in self.skipped.items() if reason.startswith("failed")]

    def measure(self, cases: Cases, seconds: float, file: Path | None) -> None:
        """Measure the cases, and write the file after each; no case starts after `seconds`."""
        started = time.monotonic()
        for name, case in cases.items():
            is_over = time.monotonic() - started >= seconds
            outcome = f"the {seconds:.0f} s were over" if is_over else attempt(case)
            self.seconds = round(time.monotonic() - started, 1)
            self.date = datetime.now(UTC).date().isoformat()
            if isinstance(outcome, str):
                self.skipped[name] = outcome
            else:
                self.rows[name] = outcome
            say(f"{name}: {self.skipped.get(name, 'measured')} ({self.seconds:.0f} s)", err=True)
            if file is not None:
                write_json(file, asdict(self))


def attempt(case: Callable[[], Iterable[Row]]) -> list[Row] | str:
    """Return a case's rows, or why it could not be measured."""
    try:
        return list(case())
    except torch.OutOfMemoryError:
        return "out of memory"
    except Exception as error:  # a compiler, a driver or another library may raise anything
        return f"failed: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


@dataclass(frozen=True)
class Peaks:
    """Measured rates of bfloat16 products (CPU: float32) and copies, and the data sheet's rate if known."""

    device: str
    flops: float  # a second, of a large product
    bytes_per_s: float  # read and written by a large copy
    data_sheet_flops: float | None

    @property
    def best_flops(self) -> float:
        """Return the data sheet's rate or, if unknown, the measured one."""
        return self.data_sheet_flops or self.flops


def measure_peaks(device: torch.device) -> Peaks:
    """Time a square product and a copy."""
    on_cuda = device.type == "cuda"
    size, copied = (8192, 2**30) if on_cuda else (1024, 2**26)
    dtype = torch.bfloat16 if on_cuda else torch.float32
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    source = torch.empty(copied // 4, device=device)
    target = torch.empty_like(source)
    product = min(timed(lambda: torch.mm(left, right), device)[1] for _ in range(8))
    copy = min(timed(lambda: target.copy_(source), device)[1] for _ in range(8))
    name = torch.cuda.get_device_name(device) if on_cuda else device.type
    sheet = next((card.flops for card in CARDS.values() if re.search(rf"\b{re.escape(card.named)}\b", name)), None)
    return Peaks(name, 2 * size**3 / product, 2 * copied / copy, sheet)


def bench_gpu(*, file: Path | None, seconds: float, shapes: Sequence[str] = (), rehearse: bool = False) -> Report:
    """Measure as many cases as the time allows, and write `file` after each; no case starts after `seconds`.

    `shapes` are keys of `SHAPES`; empty for those of the sizes. `rehearse` uses tiny shapes on any device; with
    D2E_DEVICE=cpu on the CPU.
    """
    if (name := os.environ.get("D2E_DEVICE")) not in (None, "", "cpu", "cuda"):
        raise UserError(f"D2E_DEVICE={name!r}: expected cuda or cpu", "leave it out to take the accelerator")
    device = torch.device("cpu") if name == "cpu" else usable_device()
    sizes = _sizes(device, shapes, rehearse or name == "cpu")
    peaks = measure_peaks(device)
    packages = {name: version(name) for name in _PACKAGES if find_spec(name) is not None}
    report = Report({**vars(peaks), "python": platform.python_version(), "versions": packages})
    missing = trl_is_missing()
    if missing is not None:
        report.skipped["training, TRL"] = missing
    report.measure(_GpuBench(sizes, device, peaks).cases(), seconds, file)
    return report


def _sizes(device: torch.device, shapes: Sequence[str], rehearse: bool) -> GpuSizes:
    unknown = [shape for shape in shapes if shape not in SHAPES]
    if unknown:
        raise UserError(f"--shapes {','.join(shapes)}: no shape {unknown[0]!r}; there are {', '.join(SHAPES)}")
    if rehearse:
        return REHEARSAL
    if device.type == "cpu":
        raise UserError(
            "d2e bench gpu: there is no accelerator that torch can use here",
            remedy="D2E_DEVICE=cpu or --rehearse runs tiny shapes; d2e bench train and decode measure on a CPU",
        )
    known = ACCELERATOR.training
    return replace(ACCELERATOR, training={shape: known.get(shape, (8, 350)) for shape in shapes or known})


@dataclass(frozen=True)
class _GpuBench:
    sizes: GpuSizes
    device: torch.device
    peaks: Peaks

    def cases(self) -> Cases:
        """Return training and decoding for all shapes, the others for the first one."""
        shapes = list(self.sizes.training)
        trl, first = not trl_is_missing(), shapes[0]
        cases: dict[str, Callable[[], Iterable[Row]]] = {
            f"training, {shape}": partial(self._train, "training", shape, trl=trl) for shape in shapes
        }
        cases[f"float16, {first}"] = partial(
            self._train, "float16", first, precision="float16", engines=["shared_batch"]
        )
        cases[f"preference, {first}"] = partial(self._train, "preference", first, trl=trl, objective="prefer")
        cases[f"evaluation, {first}"] = partial(self._evaluate, first)
        cases[f"refiner by likelihood, {first}"] = partial(self._refine, first)
        for shape in shapes:
            for batch in self.sizes.batches:
                cases[f"decoding, {shape}, batch {batch}"] = partial(self._decode, shape, batch)
        return cases

    def _train(self, case: str, shape: str, **options: Any) -> Iterator[Row]:
        samples, context = self.sizes.training[shape]
        options = {"precision": self.sizes.precision, "repeats": self.sizes.repeats, **options}
        for row in bench_training(
            f"shape:{shape}", contexts=[context], samples=samples, unshared_samples=0, device=self.device, **options
        ):
            used = round(1e12 * row["tflops_per_s"] / self.peaks.best_flops, 4)
            facts = {"precision": options["precision"], "model_flop_utilisation": used}
            yield {"shape": shape, "case": case, **row, **facts}

    def _evaluate(self, shape: str) -> Iterator[Row]:
        """Decode prompts debiased in batches that wait for their longest answer, and with refill as `d2e eval`."""
        model, words, sizes = *self._model(shape), self.sizes
        pairs, stops = random_pairs(sizes.prompt, sizes.evaluated, words), range(0, words, _ENDS)

        def decode(batch_size: int | None) -> list[list[int]]:
            decoding = DecodingConfig(max_new_tokens=sizes.new_tokens, batch_size=batch_size)
            return [output.tokens for output in finished(generate(model, None, pairs, decoding, stop_ids=stops))]

        size = DecodingConfig.GROUP_BATCH_SIZE
        variants = {f"batches of {size}": partial(decode, size), "refilled": partial(decode, None)}
        yield from self._answers("evaluation", shape, variants, pairs)

    def _refine(self, shape: str) -> Iterator[Row]:
        """Find the context that makes an answer likeliest, one at a time and packed; each lacks one part."""
        model, words, sizes = *self._model(shape), self.sizes
        rows = synthetic_rows(sizes.refined, sizes.prompt - PREFIX - QUESTION, words)
        candidates = [_without_a_part(row["original"], [row["answer"], row["answer"][::-1]]) for row in rows]
        decoding = DecodingConfig(alpha=0.0, batch_size=_CONTEXTS)

        def best(at_once: int) -> list[list[int]]:
            chosen = []
            for pairs in candidates:
                parts = [pairs[start : start + at_once] for start in range(0, len(pairs), at_once)]
                logprobs = [
                    options[0].logprob for part in parts for _, options in sorted(score(model, part, decoding))
                ]
                chosen.append([max(range(len(pairs)), key=logprobs.__getitem__)])
            return chosen

        variants = {"a context at a time": partial(best, 1), "packed": partial(best, _CONTEXTS)}
        yield from self._answers("refiner by likelihood", shape, variants, [*chain(*candidates)])

    def _model(self, shape: str) -> tuple[Any, int]:
        """Return a random model, and the number of its tokens."""
        model = open_model(f"shape:{shape}", self.device, self.sizes.precision).eval()
        return model, model.config.get_text_config().vocab_size

    def _answers(self, task: str, shape: str, variants: Any, pairs: Sequence[TokenPair]) -> Iterator[Row]:
        """Run variants that answer all prompts in turns; yields a row for each.

        Rates are per second of the clock, on a CPU of the processor. `same` is the share of answers that equal the
        first variant's token for token.
        """
        *_, measured = in_turns(variants, 2, self.device, warm_up=self.device.type != "cpu")
        first = next(iter(measured.values()))
        prompts = sum(len(pair.original) + len(pair.imagined or ()) for pair in pairs)
        for variant, measurement in measured.items():
            seconds, answers = statistics.median(measurement.seconds), measurement.result
            facts = {"variant": variant, "samples": len(answers), "same": measurement.same_as(first)}
            yield {
                "shape": shape,
                "case": task,
                **measurement.row({"first": first}, **facts),
                "samples_per_s": round(len(answers) / seconds, 3),
                "tokens_per_s": round((prompts + len([*chain(*answers)])) / seconds, 1),
                "dtype": self.sizes.precision,
            }

    def _decode(self, shape: str, batch: int) -> Iterator[Row]:
        sizes = self.sizes
        lengths: dict[str, Any] = {"prompts": [sizes.prompt], "batches": [batch], "new_tokens": [sizes.new_tokens]}
        options: dict[str, Any] = {"repeats": 2, "dtype": sizes.precision, "device": self.device}
        floor = 1000 * self._decoding_floor(shape, batch)
        for row in bench_decoding(f"shape:{shape}", **lengths, **options):
            yield {
                "shape": shape,
                **row,
                "dtype": sizes.precision,
                "tokens_per_s": round(1000 * batch * sizes.new_tokens / row["clock_ms"], 1),
                "roofline_ms": round(floor, 3),
                "to_roofline": round(row["clock_ms"] / floor, 2),
            }

    def _decoding_floor(self, shape: str, batch: int) -> float:
        """Return the least seconds of plain decoding: the prompts' arithmetic, and all weights read per new token."""
        prompt, model = self.sizes.prompt, random_model(shape, torch.device("meta"))
        weights = getattr(torch, self.sizes.precision).itemsize * sum(
            parameter.numel() for parameter in model.parameters()
        )
        prompts = Work(batch * prompt, 0, batch * prompt * (prompt + 1) // 2).flops(model) / 3
        return prompts / self.peaks.best_flops + (self.sizes.new_tokens - 1) * weights / self.peaks.bytes_per_s


def _without_a_part(prompt: Sequence[int], answers: Sequence[Sequence[int]]) -> list[TokenPair]:
    size = (len(prompt) - PREFIX - QUESTION) // _CONTEXTS
    starts = range(PREFIX, PREFIX + size * _CONTEXTS, size)
    return [PromptPair([*prompt[:start], *prompt[start + size :]], options=answers) for start in starts]


def gpu_text(report: Report, write: Callable[[Table], str]) -> str:
    """Return the device, tables of what was measured, and skipped cases; `write` is such as `Table.markdown`."""
    facts = report.facts
    origin = "its data sheet's" if facts["data_sheet_flops"] else "measured on a large product"
    packages = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    rows = [row for rows in report.rows.values() for row in rows]
    kinds = ([row for row in rows if key in row] for key in ("tflops_per_s", "samples_per_s", "roofline_ms"))
    lines = [
        f"{facts['device']}: {(facts['data_sheet_flops'] or facts['flops']) / 1e12:,.1f} TFLOP/s {origin}, "
        f"{facts['bytes_per_s'] / 1e9:,.0f} GB/s copying; {packages}",
        *(write(rows_table(of_kind)) for of_kind in kinds if of_kind),
        *(f"skipped: {case}: {reason}" for case, reason in report.skipped.items()),
        f"{report.seconds:.0f} s in all",
    ]
    return "\n\n".join(lines)
