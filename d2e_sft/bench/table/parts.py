"""The parts of the table: a training step, a preference step, an answer, a suite, a build, a refined context, a start.

In a part, this project and its peer take turns in one process; a start is a process each. Figures are medians of the
turns after the first. Memory is the peak above what was in memory before, weights included; a start's is the whole.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from d2e_sft.bench.cost import Cost, cost_of_process, share_of_equals
from d2e_sft.bench.decode import ALPHA, decoding_engines, random_pairs
from d2e_sft.bench.engines import (
    ENGINES,
    PREFER,
    PREFERENCE_ENGINES,
    SFT,
    Engine,
    synthetic_pairs,
    synthetic_rows,
)
from d2e_sft.bench.step_rows import Case
from d2e_sft.bench.table import peers, plain_script
from d2e_sft.bench.table.row import Bench, Row, build_command, compared, quietly, quietly_called
from d2e_sft.bench.table.stories import write_suite
from d2e_sft.bench.train import Run, measure
from d2e_sft.bench.trl_peer import trl_engines, trl_is_missing
from d2e_sft.config.decoding import DecodingConfig
from d2e_sft.config.recipe import D2ESection
from d2e_sft.data.prompts import candidate_responses, load_prompt_set
from d2e_sft.data.sample import EventSample
from d2e_sft.data.views import ViewEncoder
from d2e_sft.decoding.likelihood import score
from d2e_sft.decoding.pairs import PromptPair
from d2e_sft.decoding.samples import answer_samples
from d2e_sft.model.device import PeakMemory, automatic_dtype, usable_device
from d2e_sft.model.loading import load_model
from d2e_sft.model.packing_support import choose_layout
from d2e_sft.model.storage.folder import resolve_name

_GENERATE, _GUIDANCE = "transformers' generate", "transformers' generate with guidance"
# What a step computes → our engine and its settings, the peer's engine, and the peer's name.
_STEPS = {
    "plain SFT": ("sft_shared", SFT, "trl", "TRL's SFTTrainer"),
    "D²E-SFT, three views": ("shared_batch", D2ESection(), "three_forwards", "a forward per view"),
}


def training(bench: Bench) -> Iterator[Row]:
    """Yield a step of plain SFT and of D²E-SFT: forward and backward, with collation."""
    missing = trl_is_missing()
    trl = () if missing else trl_engines(automatic_dtype())
    known = {engine.name: engine for engine in (*ENGINES, *trl)}
    chosen = [
        (known[name], d2e) for ours, d2e, theirs, _ in _STEPS.values() for name in (ours, theirs) if name in known
    ]
    plan = bench.plan
    costs = _steps(bench, chosen, plan.samples)
    for what, (ours, _, theirs, peer) in _STEPS.items():
        task = f"a training step, {what}: a sample of {plan.samples}"
        yield compared(task, costs[ours], peer, costs.get(theirs, ()), each=plan.samples, why=missing or "")


def preference(bench: Bench) -> Iterator[Row]:
    """Yield a step of DPO, whose rows have the reference's log-probabilities."""
    missing = trl_is_missing()
    ours = next(engine for engine in PREFERENCE_ENGINES if engine.name == "shared_batch")
    trl = () if missing else trl_engines(automatic_dtype(), prefers=True)
    pairs = bench.plan.pairs
    costs = _steps(bench, [(engine, PREFER) for engine in (ours, *trl)], pairs)
    task = f"a training step, DPO: a pair of {pairs}"
    yield compared(task, costs[ours.name], "TRL's DPOTrainer", costs.get("trl", ()), each=pairs, why=missing or "")


def _steps(bench: Bench, engines: Sequence[tuple[Engine, D2ESection]], count: int) -> dict[str, list[Cost]]:
    """Measure a step of each engine, as `d2e bench train` does; returns the costs by the engine's name."""
    model = load_model(bench.model).model
    layout = choose_layout(model, D2ESection(), "shared_batch")
    model = model.to(usable_device()).train()
    words = model.config.get_text_config().vocab_size
    rows = synthetic_rows(count, bench.plan.context, words)
    if any(engine.prefers for engine, _ in engines):
        rows = synthetic_pairs(rows, words)
    cases = [Case(engine, d2e, rows, []) for engine, d2e in engines]
    for _ in measure(Run(model, layout.attention, automatic_dtype(), PeakMemory()), cases, bench.plan.repeats):
        pass
    return {
        case.engine.name: [Cost(clock, cpu, case.peak) for clock, cpu in zip(case.seconds, case.cpu, strict=True)]
        for case in cases
    }


def decoding(bench: Bench) -> Iterator[Row]:
    """Yield an answer of a fixed length, plainly and debiased, for each batch size."""
    ours, theirs, _ = bench.models()
    plan = bench.plan
    for batch in plan.batches:
        pairs = random_pairs(plan.prompt, batch, ours.config.get_text_config().vocab_size)
        costs, answers = bench.turns(decoding_engines(ours, pairs, plan.new_tokens, of_transformers=theirs))
        for how, mine, other, peer in (
            ("plain", "plain", "transformers_plain", _GENERATE),
            (f"α = {ALPHA}", "debiased", "guidance", _GUIDANCE),
        ):
            same = share_of_equals(answers[mine], answers[other])
            task = f"an answer, {how}: of a batch of {batch}"
            yield compared(task, costs[mine], peer, costs[other], each=batch, same=same)


def suite(bench: Bench) -> Iterator[Row]:
    """Yield an evaluated suite: answers generated plainly and debiased, and options by likelihood."""
    ours, theirs, tokenizer = bench.models()
    wording, new_tokens = load_prompt_set("default"), bench.plan.new_tokens
    _, samples = bench.built_suite("suite", bench.plan.stories)
    prompts, imagined = ([wording.messages(sample, view) for sample in samples] for view in ("original", "imagined"))
    for alpha, without, peer in ((0.0, [], _GENERATE), (ALPHA, imagined, _GUIDANCE)):
        how = DecodingConfig(alpha=alpha, max_new_tokens=new_tokens)
        ways: dict[str, Callable[[], Any]] = {
            "ours": partial(answer_samples, ours, tokenizer, samples, how),
            "peer": partial(peers.answer_one_by_one, theirs, tokenizer, prompts, new_tokens, without_context=without),
        }
        costs, texts = bench.turns(ways)
        task = f"an evaluated suite, generated, α = {alpha:g}: a sample of {len(samples)}"
        same = share_of_equals(texts["ours"], texts["peer"])
        yield compared(task, costs["ours"], f"a loop over {peer}", costs["peer"], each=len(samples), same=same)
    asked = [sample for sample in samples if sample.candidates]
    yield _by_likelihood(bench, ours, theirs, tokenizer, asked)


def _by_likelihood(bench: Bench, ours: Any, theirs: Any, tokenizer: Any, samples: Sequence[EventSample]) -> Row:
    wording = load_prompt_set("default")
    encoder = ViewEncoder(tokenizer, wording, ("original",))

    def best_options() -> list[int]:
        prompts = encoder.all_prompt_ids(samples, "original")
        pairs = [
            PromptPair(prompt, None, *encoder.option_ids(sample), group=sample.dataset)
            for sample, prompt in zip(samples, prompts, strict=True)
        ]
        scores = score(ours, pairs, DecodingConfig(alpha=0))
        return [max(range(len(own)), key=[one.logprob for one in own].__getitem__) for own in scores]

    missing = peers.is_missing("lm_eval")
    ways: dict[str, Callable[[], Any]] = {"ours": best_options}
    if missing is None:
        prompts = [wording.messages(sample, "original") for sample in samples]
        options = [candidate_responses(wording, sample) for sample in samples]
        ways["peer"] = partial(peers.best_options_by_harness, theirs, tokenizer, prompts, options)
    costs, found = bench.turns(ways)
    same = None if missing else share_of_equals(found["ours"], found["peer"])
    task = f"an evaluated suite, options by likelihood: a sample of {len(samples)}"
    theirs_costs = costs.get("peer", ())
    return compared(
        task, costs["ours"], "lm-evaluation-harness", theirs_costs, each=len(samples), same=same, why=missing or ""
    )


def build(bench: Bench) -> Iterator[Row]:
    """Yield a built suite: read, checked, refined and written, with manifest and card."""
    folder = bench.folder / "build"
    descriptions = write_suite(folder, bench.plan.built, bench.plan.sentences)
    ways: dict[str, Callable[[], Any]] = {"ours": lambda: quietly(build_command(descriptions, folder / "built"))}
    missing = peers.is_missing("datasets")
    if missing is None:
        files = [description.with_suffix(".jsonl") for description in descriptions]
        ways["peer"] = partial(peers.build_with_datasets, files, folder)
    costs, _ = bench.turns(ways)
    task = f"a built suite of {len(descriptions) * bench.plan.built:,} rows, contexts refined"
    yield compared(task, costs["ours"], "datasets: map and filter", costs.get("peer", ()), why=missing or "")


def refined(bench: Bench) -> Iterator[Row]:
    """Yield a refined context by rules, beside a language model that is asked for the relevant sentences."""
    refine, options = bench.lent("refine_samples"), bench.lent("RefinerOptions")()
    _, samples = bench.built_suite("refined", bench.plan.refined)
    bare = [sample.model_copy(update={"refined_context": None}) for sample in samples]
    _, model, tokenizer = bench.models()
    prompts = [
        [{"role": "user", "content": f"{peers.REFINING}\n\n{sample.context}\n\n{sample.question}"}] for sample in bare
    ]
    costs, _ = bench.turns(
        {
            "ours": lambda: quietly_called(lambda: refine(bare, options)),
            "peer": partial(peers.answer_one_by_one, model, tokenizer, prompts, 4 * bench.plan.new_tokens),
        }
    )
    yield compared(
        "a refined context, by rules", costs["ours"], f"{_GENERATE}, same model", costs["peer"], each=len(bare)
    )


def start(bench: Bench) -> Iterator[Row]:
    """Yield a start, from the call to the end: one step of LoRA, and one answer."""
    folder, model = bench.folder / "start", resolve_name(bench.model)
    descriptions, _ = bench.built_suite("start", 8, "train")
    rows = descriptions[0].with_suffix(".jsonl")
    one = write_suite(folder / "one", 1, bench.plan.sentences)[0]
    d2e, script = [sys.executable, "-m", "d2e_sft.cli"], [sys.executable, "-P", plain_script.__file__]
    recipe = ["train", "--model", "smollm2-135m-quickstart", "--method", "sft-lora", f"model.name={model}"]
    recipe += [f"data.train={folder / 'built' / 'train.parquet'}", "data.max_length=1024", "train.max_steps=1"]
    recipe += [f"train.output_dir={folder / 'run'}", "--overwrite"]
    answer = ["predict", model, str(one.with_suffix(".jsonl")), "--mapping", str(one), "--alpha", "0"]
    answer += ["--max-new-tokens", "16", "--out", str(folder / "answer.jsonl"), "--overwrite"]
    missing = trl_is_missing() or peers.is_missing("peft")
    trained = [*script, "train", model, str(rows), str(folder / "trl")]
    answered = [*script, "answer", model, str(one.with_suffix(".jsonl")), str(folder / "peer.jsonl")]
    for task, ours, peer, theirs, why in (
        ("a start: to one trained step of LoRA", recipe, "a script with TRL's SFTTrainer", trained, missing),
        ("a start: to one answer", answer, "a script with transformers", answered, None),
    ):
        ways = {"ours": partial(cost_of_process, [*d2e, *ours])}
        if why is None:
            ways["peer"] = partial(cost_of_process, theirs)
        costs, _ = bench.turns(ways)
        yield compared(task, costs["ours"], peer, costs.get("peer", ()), why=why or "")


PARTS: Mapping[str, Callable[[Bench], Iterator[Row]]] = {
    "training": training,
    "preference": preference,
    "decoding": decoding,
    "suite": suite,
    "build": build,
    "refined": refined,
    "start": start,
}
