"""`d2e bench all`: one table of what each task costs, next to what a user would take instead.

In a case this project and its peer take turns in one process; a start is a process each. Memory is the peak above what
was in memory before, weights included; a start's is the whole. Rows are generated, so nothing is downloaded.
"""

from __future__ import annotations

import io
import json
import os
import platform
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from d2e_sft import __version__
from d2e_sft.bench import peers
from d2e_sft.bench.decode import ALPHA, decoding_engines, random_pairs
from d2e_sft.bench.harness import Measurement, Report, Row, cost_of_process, in_turns, rows_table, versions
from d2e_sft.bench.train import PREFER, SFT, StepBench, engines_of, synthetic_pairs, synthetic_rows
from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.config.recipe import D2ESection
from d2e_sft.data.prompts import candidate_responses, load_prompt_set
from d2e_sft.data.sample import EventSample, read_samples
from d2e_sft.data.views import ViewEncoder
from d2e_sft.decoding.generation import answer_samples
from d2e_sft.decoding.likelihood import score
from d2e_sft.decoding.pairs import PromptPair
from d2e_sft.model.device import PeakMemory, automatic_dtype, cpu_has_bfloat16, usable_device
from d2e_sft.model.loading import load_model
from d2e_sft.model.onednn import ready_to_decode
from d2e_sft.model.storage.folder import resolve_name
from d2e_sft.util.errors import UserError, did_you_mean
from d2e_sft.util.files import read_json_as
from d2e_sft.util.table import Table
from d2e_sft.util.terminal import say

FILE = "bench.json"
_GENERATE, _GUIDANCE = "transformers' generate", "transformers' generate with guidance"


@dataclass(frozen=True)
class TableSizes:
    """Samples and pairs of a step and tokens of their contexts; prompts; rows of suites; timed turns."""

    samples: int
    pairs: int
    context: int
    prompt: int
    batches: Sequence[int]
    new_tokens: int
    stories: int
    sentences: int
    built: int
    refined: int
    repeats: int


FULL = TableSizes(
    samples=4, pairs=2, context=200, prompt=400, batches=(1, 8), new_tokens=32, stories=5, sentences=16, built=2000,
    refined=3, repeats=3,
)  # fmt: skip
REHEARSAL = TableSizes(
    samples=2, pairs=2, context=20, prompt=180, batches=(2,), new_tokens=4, stories=2, sentences=3, built=20,
    refined=2, repeats=1,
)  # fmt: skip


@dataclass(frozen=True)
class TableBench:
    """The cases of the table; `lent` gives functions of the data builders by name."""

    model: str
    sizes: TableSizes
    folder: Path
    lent: Callable[[str], Any]

    def training(self) -> Iterator[Row]:
        """Yield a step of plain SFT and of D²E-SFT: forward and backward, with collation."""
        missing, count = peers.trl_is_missing(), self.sizes.samples
        steps = {"sft_shared": SFT, "shared_batch": D2ESection(), "three_forwards": D2ESection()}
        costs = self._steps(steps if missing else {**steps, "trl": SFT}, count)
        task = "a training step, {}: a sample of " + str(count)
        yield _row(task.format("plain SFT"), costs, "sft_shared", "trl", "TRL's SFTTrainer", count, why=missing)
        task = task.format("D²E-SFT, three views")
        yield _row(task, costs, "shared_batch", "three_forwards", "a forward per view", count)

    def preference(self) -> Iterator[Row]:
        """Yield a step of DPO, whose rows have the reference's log-probabilities."""
        missing, pairs = peers.trl_is_missing(), self.sizes.pairs
        costs = self._steps(dict.fromkeys(("shared_batch", *([] if missing else ["trl"])), PREFER), pairs)
        task = f"a training step, DPO: a pair of {pairs}"
        yield _row(task, costs, "shared_batch", "trl", "TRL's DPOTrainer", pairs, why=missing)

    def _steps(self, sections: Mapping[str, D2ESection], count: int) -> dict[str, Measurement]:
        precision, prefers = automatic_dtype(), any(d2e.prefers for d2e in sections.values())
        engines = engines_of(precision, trl="trl" in sections, prefers=prefers)
        bench = StepBench.of(self.model, precision)
        rows = synthetic_rows(count, self.sizes.context, bench.vocabulary)
        rows = synthetic_pairs(rows, bench.vocabulary) if prefers else rows
        chosen = [replace(engine, d2e=sections[engine.name]) for engine in engines if engine.name in sections]
        *_, measured = bench.measure(chosen, rows, self.sizes.repeats)
        return {engine.name: measurement for engine, measurement in measured.items()}

    def decoding(self) -> Iterator[Row]:
        """Yield an answer of a fixed length, plainly and debiased, for each batch size."""
        ours, theirs, _ = self._models()
        for batch in self.sizes.batches:
            pairs = random_pairs(self.sizes.prompt, batch, ours.config.get_text_config().vocab_size)
            costs = self._turns(decoding_engines(ours, pairs, self.sizes.new_tokens, of_transformers=theirs))
            task = "an answer, {}: of a batch of " + str(batch)
            yield _row(task.format("plain"), costs, "plain", "transformers_plain", _GENERATE, batch, same=True)
            yield _row(task.format(f"α = {ALPHA}"), costs, "debiased", "guidance", _GUIDANCE, batch, same=True)

    def suite(self) -> Iterator[Row]:
        """Yield an evaluated suite: answers generated plainly and debiased, and options by likelihood."""
        ours, theirs, tokenizer = self._models()
        wording, new_tokens = load_prompt_set("default"), self.sizes.new_tokens
        _, samples = self._built_suite("suite", self.sizes.stories)
        prompts, imagined = (
            [wording.messages(sample, view) for sample in samples] for view in ("original", "imagined")
        )
        for alpha, without, peer in ((0.0, [], _GENERATE), (ALPHA, imagined, _GUIDANCE)):
            decoding = DecodingConfig(alpha=alpha, max_new_tokens=new_tokens)
            variants: dict[str, Callable[[], Any]] = {
                "ours": partial(answer_samples, ours, tokenizer, samples, decoding),
                "peer": partial(peers.answer_one_by_one, theirs, tokenizer, prompts, new_tokens, without),
            }
            task = f"an evaluated suite, generated, α = {alpha:g}: a sample of {len(samples)}"
            costs = self._turns(variants)
            yield _row(task, costs, "ours", "peer", f"a loop over {peer}", len(samples), same=True)
        asked = [sample for sample in samples if sample.candidates]
        encoder, missing = ViewEncoder(tokenizer, wording, ("original",)), peers.is_missing("lm_eval")

        def best_options() -> list[int]:
            tokens = encoder.all_prompt_ids(asked, "original")
            pairs = [
                PromptPair(prompt, None, *encoder.option_ids(sample), group=sample.dataset)
                for sample, prompt in zip(asked, tokens, strict=True)
            ]
            scores = [row for _, row in sorted(score(ours, pairs, DecodingConfig(alpha=0)))]
            return [max(range(len(row)), key=[option.logprob for option in row].__getitem__) for row in scores]

        variants = {"ours": best_options}
        if missing is None:
            prompts = [wording.messages(sample, "original") for sample in asked]
            options = [candidate_responses(wording, sample) for sample in asked]
            variants["peer"] = partial(peers.best_options_by_harness, theirs, tokenizer, prompts, options)
        task = f"an evaluated suite, options by likelihood: a sample of {len(asked)}"
        costs = self._turns(variants)
        yield _row(task, costs, "ours", "peer", "lm-evaluation-harness", len(asked), same=True, why=missing)

    def build(self) -> Iterator[Row]:
        """Yield a built suite: read, checked, refined and written, with manifest and card."""
        folder, missing = self.folder / "build", peers.is_missing("datasets")
        descriptions = write_suite(folder, self.sizes.built, self.sizes.sentences)
        variants: dict[str, Callable[[], Any]] = {"ours": partial(_build, descriptions, folder / "built")}
        if missing is None:
            files = [description.with_suffix(".jsonl") for description in descriptions]
            variants["peer"] = partial(peers.build_with_datasets, files, folder)
        task = f"a built suite of {len(descriptions) * self.sizes.built:,} rows, contexts refined"
        yield _row(task, self._turns(variants), "ours", "peer", "datasets: map and filter", why=missing)

    def refined(self) -> Iterator[Row]:
        """Yield a refined context by rules, next to a language model that is asked for the relevant sentences."""
        refine, options = self.lent("refine_samples"), self.lent("RefinerOptions")()
        _, samples = self._built_suite("refined", self.sizes.refined)
        bare = [sample.model_copy(update={"refined_context": None}) for sample in samples]
        _, model, tokenizer = self._models()
        texts = [f"{peers.REFINING}\n\n{sample.context}\n\n{sample.question}" for sample in bare]
        prompts = [[{"role": "user", "content": text}] for text in texts]
        variants = {
            "ours": partial(_quietly, refine, bare, options),
            "peer": partial(peers.answer_one_by_one, model, tokenizer, prompts, 4 * self.sizes.new_tokens),
        }
        peer = f"{_GENERATE}, same model"
        yield _row("a refined context, by rules", self._turns(variants), "ours", "peer", peer, len(bare))

    def start(self) -> Iterator[Row]:
        """Yield a start, from the call to the end: one step of LoRA, and one answer."""
        folder, model = self.folder / "start", resolve_name(self.model)
        descriptions, _ = self._built_suite("start", 8, "train")
        rows = descriptions[0].with_suffix(".jsonl")
        asked = write_suite(folder / "one", 1, self.sizes.sentences)[0]
        d2e, script = [sys.executable, "-m", "d2e_sft.cli"], [sys.executable, "-P", peers.__file__]
        recipe = ["train", "--model", "smollm2-135m-quickstart", "--method", "sft-lora", f"model.name={model}"]
        recipe += [f"data.train={folder / 'built' / 'train.parquet'}", "data.max_length=1024", "train.max_steps=1"]
        recipe += [f"train.output_dir={folder / 'run'}", "--overwrite"]
        answer = ["predict", model, str(asked.with_suffix(".jsonl")), "--mapping", str(asked), "--alpha", "0"]
        answer += ["--max-new-tokens", "16", "--out", str(folder / "answer.jsonl"), "--overwrite"]
        trained = [*script, "train", model, str(rows), str(folder / "trl")]
        answered = [*script, "answer", model, str(asked.with_suffix(".jsonl")), str(folder / "peer.jsonl")]
        missing = peers.trl_is_missing() or peers.is_missing("peft")
        for task, ours, peer, theirs, why in (
            ("a start: to one trained step of LoRA", recipe, "a script with TRL's SFTTrainer", trained, missing),
            ("a start: to one answer", answer, "a script with transformers", answered, None),
        ):
            variants = {"ours": partial(cost_of_process, [*d2e, *ours])}
            if why is None:
                variants["peer"] = partial(cost_of_process, theirs)
            yield _row(task, self._turns(variants), "ours", "peer", peer, why=why)

    def cases(self) -> dict[str, Callable[[], Iterator[Row]]]:
        return {name: getattr(self, name) for name in CASES}

    def _turns(self, variants: Mapping[str, Callable[[], Any]]) -> dict[str, Measurement]:
        *_, measured = in_turns(variants, self.sizes.repeats, usable_device(), memory=PeakMemory)
        return measured

    def _models(self) -> tuple[Any, Any, Any]:
        """Return the model as this project decodes with it, as transformers does, and the tokenizer."""
        loaded, device = load_model(self.model), usable_device()
        return ready_to_decode(load_model(self.model).model, device), loaded.model.to(device).eval(), loaded.tokenizer

    def _built_suite(self, name: str, stories: int, split: str = "test") -> tuple[list[Path], list[EventSample]]:
        folder = self.folder / name
        descriptions = write_suite(folder, stories, self.sizes.sentences, split)
        _build(descriptions, folder / "built")
        return descriptions, read_samples(folder / "built" / f"{split}.parquet")


CASES = ("training", "preference", "decoding", "suite", "build", "refined", "start")


def _row(
    task: str,
    measured: Mapping[str, Measurement],
    ours: str,
    theirs: str,
    peer: str,
    each: int = 1,
    *,
    same: bool = False,
    why: str | None = None,
) -> Row:
    """Return a line of the table; without a peer, `why` says what is missing.

    Seconds are divided by `each`, the samples that share them. `ratio` is the time relative to the peer's, `same` the
    share of results that equal the peer's, if both should give the same.
    """
    us, other = measured[ours], measured.get(theirs)
    shared = [
        None if cost is None
        else {"clock_s": cost.clock_s / each, "cpu_s": cost.cpu_s / each, "peak_mb": cost.peak_mb}
        for cost in (us.cost, None if other is None else other.cost)
    ]  # fmt: skip
    return {
        "task": task,
        "ours": shared[0],
        "peer": peer,
        "theirs": shared[1],
        "ratio": None if other is None else us.ratio_to(other),
        "same": us.same_as(other) if same and other is not None else None,
        "why": (why or "") if other is None else "",
    }


def bench_all(bench: TableBench, minutes: float, only: Sequence[str] = ()) -> Report:
    """Measure the cases that the file in `bench.folder` lacks, and write it after each.

    A file of another machine, version, model or size is replaced, and so is a complete one, or its cases in `only`.
    No case starts after `minutes`.
    """
    for name in only:
        if name not in CASES:
            raise UserError(f"--parts {name}: expected some of {', '.join(CASES)}.{did_you_mean(name, CASES)}")
    file, facts = bench.folder / FILE, _facts(bench)
    report = Report(facts)
    if file.is_file():
        kept = read_json_as(Report, file, "measured figures", "delete it, and measure again")
        complete = is_complete(kept)
        if kept.facts == facts and (only or not complete):
            report, report.skipped = kept, {}
            if complete:
                report.rows = {name: rows for name, rows in kept.rows.items() if name not in only}
            say(f"{file}: resumed; it has {', '.join(report.rows) or 'nothing yet'}", err=True)
    cases = bench.cases()
    report.measure({name: cases[name] for name in only or CASES}, 60 * minutes, file)
    return report


def is_complete(report: Report) -> bool:
    return report.rows.keys() == set(CASES)


def _facts(bench: TableBench) -> dict[str, Any]:
    sizes = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(bench.sizes).items()}
    return {
        "d2e_sft": __version__,
        "machine": machine(),
        "threads": torch.get_num_threads(),
        "precision": automatic_dtype(),
        "versions": versions("torch", "transformers", "trl", "datasets", "lm_eval"),
        "model": bench.model,
        "plan": sizes,
    }


def machine() -> str:
    """Describe the accelerator, or the cores of the processor."""
    device = usable_device()
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"{os.cpu_count()} cores of {name}{', bfloat16 in hardware' if cpu_has_bfloat16() else ''}"


# column → field and format
_COLUMNS = {
    "task": ("task", "{}"),
    "CPU s": ("cpu_s", "{:.3g}"),
    "clock s": ("clock_s", "{:.3g}"),
    "MB": ("peak_mb", "{:,.0f}"),
    "instead": ("peer", "{}"),
    "its CPU s": ("peer_cpu_s", "{:.3g}"),
    "its clock s": ("peer_clock_s", "{:.3g}"),
    "its MB": ("peer_peak_mb", "{:,.0f}"),
    "CPU / its CPU": ("ratio", "{:.2g}"),
    "same result": ("same", "{:.0%}"),
}


def table_of(report: Report) -> Table:
    """Return all rows as one table, with the machine and the date below it."""
    rows = []
    for row in (row for name in CASES for row in report.rows.get(name, ())):
        theirs = {f"peer_{name}": value for name, value in (row["theirs"] or {}).items()}
        peer = f"{row['peer']}: {row['why']}" if row["why"] else row["peer"]
        rows.append({**row, **row["ours"], **theirs, "peer": peer})
    facts = report.facts
    packages = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    threads = f"{facts['threads']} thread{'s' * (facts['threads'] != 1)}"
    notes = [
        f"{facts['machine']}, {threads}, {report.date}; {facts['model']}; {packages}.",
        *(f"Not measured: {name} ({reason})." for name, reason in report.skipped.items()),
    ]
    return rows_table(rows, _COLUMNS, notes=notes)


def _build(descriptions: Sequence[Path], out: Path) -> None:
    from d2e_sft.cli import run

    _quietly(run, ["data", "build", "--datasets", ",".join(map(str, descriptions)), "--out", str(out), "--overwrite"])


def _quietly(call: Callable[..., Any], *args: Any) -> Any:
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        return call(*args)


# Stories of who carried what where, with a question whose answer is the last place, as long as a PIPER passage.
_PEOPLE = ("Ana", "Bo", "Carla", "Deniz", "Emre", "Fay", "Goran", "Hana")
_THINGS = ("the map", "the lamp", "the red coat", "the ladder", "the radio", "the old clock")
_PLACES = ("the attic", "the kitchen", "the garden shed", "the car", "the cellar", "the hall", "the workshop")
_DAYS = ("On Monday", "The next morning", "Before lunch", "Late at night", "A week later", "When the rain stopped")
_DESCRIPTION = """\
{split}: {file}
format: {format}
relation: temporal
columns: {{context: story, question: ask, {options}answer: place}}
"""


def write_suite(folder: Path, stories: int, sentences: int, split: str = "test") -> list[Path]:
    """Write stories for each of two datasets, one with options and one without; returns their descriptions."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptions = []
    for seed, (name, fmt) in enumerate({"choices": "scq", "questions": "qa"}.items()):
        rows = folder / f"{name}.jsonl"
        with rows.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in _stories(stories, sentences, seed))
        options = "options: places, " if fmt == "scq" else ""
        text = _DESCRIPTION.format(split=split, file=rows.name, format=fmt, options=options)
        descriptions.append(rows.with_suffix(".yaml"))
        descriptions[-1].write_text(text, encoding="utf-8")
    return descriptions


def _stories(stories: int, sentences: int, seed: int) -> Iterator[dict[str, object]]:
    source = random.Random(seed)
    for number in range(stories):
        where: dict[str, str] = {}
        lines = []
        for _ in range(sentences):
            thing, place = source.choice(_THINGS), source.choice(_PLACES)
            where[thing] = place
            lines.append(f"{source.choice(_DAYS)}, {source.choice(_PEOPLE)} carried {thing} into {place}.")
        thing = source.choice(list(where))
        places = [*source.sample([place for place in _PLACES if place != where[thing]], 3), where[thing]]
        yield {
            "id": str(number),
            "story": " ".join(lines),
            "ask": f"Where is {thing} at the end of the story?",
            "places": sorted(places),
            "place": where[thing],
        }
