"""The model card: what a run was, was trained on and scored, as the Hub's README.md.

All of it is read from the run folder and the manifest beside its data, so the same run gives the same bytes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import yaml
from huggingface_hub import ModelCardData

from d2e_sft import __version__
from d2e_sft.config.objectives import BASE, spec_of
from d2e_sft.config.recipe import Recipe
from d2e_sft.data.prompts import PromptSet
from d2e_sft.data.sample import Format
from d2e_sft.hub.results import BenchmarkResult, benchmark_results, eval_results
from d2e_sft.hub.training import TrainingData, training_data
from d2e_sft.hub.usage import Usage, style_of
from d2e_sft.hub.weights import base_of_adapter
from d2e_sft.model.loading import BUILTIN, BUILTIN_HUB_NAME, load_tokenizer
from d2e_sft.util.markup import harmless_markdown, inline_code, one_line
from d2e_sft.util.table import Table

CARD_NAME = "README.md"
PAPER = "PIPER: Benchmarking and Prompting Event Reasoning Boundary of LLMs via Debiasing-Distillation Enhanced Tuning"
_TEMPLATE = Path(__file__).with_name("card.md.jinja")


def model_card(run: Path, recipe: Recipe, prompt_set: PromptSet, *, adapter: bool, licence: str | None = None) -> str:
    """The card's text, with `OWNER/NAME` where the repository's name belongs.

    Args:
        adapter: the export is an adapter on its own.
        licence: the Hub's name of the weights' licence; None says that it is unknown, unless the base is known.

    Raises:
        UserError: a file of scores is damaged.
    """
    results = benchmark_results(run)
    data = training_data(run, recipe)
    tokenizer, encoder_decoder = load_tokenizer(str(run))
    example = _example_format(prompt_set, results)
    usage = Usage(
        prompt_set,
        example,
        recipe.decoding,
        adapter,
        encoder_decoder,
        style_of(tokenizer),
        "none" if data.relations == {"none"} else "causal",
        data.chat,
    )
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False)
    environment.filters["harmless"] = harmless_markdown
    text = environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        card_data=_card_data(run, recipe, adapter, licence, results, data).to_yaml(),
        title=_title(run),
        introduction=_introduction(recipe, adapter),
        method=_method(recipe),
        facts=[(name, one_line(value)) for name, value in _facts(recipe, adapter, prompt_set)],
        adapter=adapter,
        alpha=recipe.decoding.alpha,
        code=usage.code(),
        formats=_formats(prompt_set) if data.chat is None else "",
        wording="" if data.chat is None else _chat_wording(data.chat),
        results=results,
        data=data.text,
        limits=_limits(recipe, results, data, at_home=adapter and not portable_adapter(run)),
        paper=PAPER,
    )
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def hub_base(recipe: Recipe) -> str | None:
    """The base model's name on the Hub; None where it is a folder, or its architecture alone is used."""
    name = recipe.model.name
    if recipe.model.weights == "random":
        return None
    if name == BUILTIN:
        return BUILTIN_HUB_NAME
    return name if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) and not Path(name).exists() else None


def portable_adapter(run: Path) -> bool:
    """Whether others can load the base that an adapter names: it has a name on the Hub, and is not of this machine."""
    base = base_of_adapter(run)
    return re.fullmatch(r"[\w.-]+(/[\w.-]+)?", base) is not None and not Path(base).exists()


def _card_data(
    run: Path,
    recipe: Recipe,
    adapter: bool,
    licence: str | None,
    results: Sequence[BenchmarkResult],
    data: TrainingData,
) -> ModelCardData:
    base = hub_base(recipe)
    known = "apache-2.0" if recipe.model.name == BUILTIN else "unknown"
    card_data = ModelCardData(
        license=licence or known,
        language="en" if data.described else None,
        library_name="peft" if adapter else "transformers",
        pipeline_tag="text-generation",
        base_model=base,
        tags=["event-reasoning", "d2e-sft", "custom_generate"],
        model_name=_title(run) if results else None,
        eval_results=eval_results(results) or None,
    )
    if base is not None:
        card_data["base_model_relation"] = "adapter" if adapter else "finetune"
    return card_data


def _title(run: Path) -> str:
    folder = run.resolve()
    return f"{folder.parent.name}-{folder.name}" if folder.name.startswith("checkpoint-") else folder.name


def _introduction(recipe: Recipe, adapter: bool) -> str:
    base = hub_base(recipe)
    of = f"[{base}](https://huggingface.co/{base})" if base else f"`{Path(recipe.model.name).name}`"
    kind = "An adapter (LoRA) for" if adapter else "A fine-tuned version of"
    if recipe.model.weights == "random":
        kind, of = "A model of the architecture of", f"`{recipe.model.name}`, which began with random weights"
    how = spec_of("sft" if recipe.d2e.views == ("original",) else recipe.d2e.objective).about
    return (
        f"{kind} {of}, trained for event reasoning (which event came first, caused, would have changed or is part of "
        f"another) with {how} by d2e-sft {__version__}."
    )


def _method(recipe: Recipe) -> str:
    """Two sentences, of what this run did and left out."""
    views, debiased, spec = recipe.d2e.views, recipe.d2e.effective_alpha > 0, spec_of(recipe.d2e.objective)
    names = {"original": "with its context", "imagined": "without it", "refined": "with its relevant parts alone"}
    seen = " and ".join(filter(None, [", ".join(names[v] for v in views[:-1]), names[views[-1]]]))
    learnt = spec.learnt or (
        "`z_original − α·z_imagined`, the logits with the habit taken out" if debiased else "the logits"
    )
    if recipe.d2e.frozen_views:
        of = "the model before training" if recipe.d2e.bias_model == BASE else f"`{recipe.d2e.bias_model}`"
        learnt += f", the imagined logits those of {of}"
    kept = ", kept close to those of the refined view by a divergence" if recipe.d2e.distils_both_ways else ""
    difference = "that difference" if spec.learnt is None else "`z_original − α·z_imagined`"
    decoded = (
        f"each token is chosen from {difference}, so both prompts are needed"
        if recipe.decoding.alpha > 0
        else "the model is decoded as any other"
    )
    return f"Each sample was seen {seen}, and its answer learnt from {learnt}{kept}. At inference {decoded}."


def _facts(recipe: Recipe, adapter: bool, prompt_set: PromptSet) -> list[tuple[str, str]]:
    d2e, train, lora = recipe.d2e, recipe.train, recipe.model.lora
    tuned = "full weights" if lora is None else f"LoRA, r = {lora.r}, alpha = {lora.lora_alpha}"
    if lora is not None and recipe.model.quantization:
        tuned += f", base in {recipe.model.quantization}"
    if lora is not None and not adapter:
        tuned += "; merged here"
    divergence = "KL({} ‖ {})".format(*d2e.kl_direction.split("_"))
    if not d2e.distils_both_ways:
        divergence = "KL(refined, detached ‖ original)"
    base = f"`{hub_base(recipe) or Path(recipe.model.name).name}`"
    if recipe.model.weights == "random":
        base = f"none: random weights of the architecture of `{recipe.model.name}`"
    elif recipe.model.name == BUILTIN:
        base += f", as `{BUILTIN}`"
    return [
        ("base model", base),
        ("trained", tuned),
        ("objective", f"`{d2e.objective}`"),
        ("α in training", f"{d2e.effective_alpha:g}"),
        ("α in decoding", f"{recipe.decoding.alpha:g}"),
        ("views", ", ".join(d2e.views)),
        ("distillation", f"{d2e.kl_weight:g} · {divergence}" if d2e.distill and "refined" in d2e.views else "none"),
        ("prompt set", f"`{prompt_set.name}`"),
        (
            "optimisation",
            f"learning rate {train.learning_rate:g}, batch {train.batch_size}, "
            + (f"{train.max_steps} steps" if train.max_steps > 0 else f"{train.num_train_epochs:g} epochs")
            + f", warm-up {train.warmup_steps:g}, {train.precision}, seed {train.seed}",
        ),
    ]


def _example_format(prompt_set: PromptSet, results: Sequence[BenchmarkResult]) -> Format:
    """The format that most scored samples have: what the model is for."""
    counts: Counter[Format] = Counter()
    for group in (group for result in results for group in result.groups):
        if group["format"] in prompt_set.zero_shot:
            counts[group["format"]] += group["n"]
    if counts:
        return counts.most_common(1)[0][0]
    return "qa" if "qa" in prompt_set.zero_shot else next(iter(prompt_set.zero_shot))


def _chat_wording(said: Mapping[str, Any]) -> str:
    """What the description of the training data says of the wording, as YAML."""
    keys = ("system", "prompt", "context_in", "context_block", "loss")
    found = {key: said[key] for key in keys if said.get(key)} or {"context_in": "<context>"}
    text = yaml.safe_dump(found, sort_keys=False, allow_unicode=True)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}yaml\n{text}{fence}"


def _formats(prompt_set: PromptSet) -> str:
    columns = ("format", "context line", "prompt")
    rows = [(fmt, _code(wording.context), _code(wording.user)) for fmt, wording in prompt_set.zero_shot.items()]
    return Table.of(columns, rows).markdown(escape=False)


def _limits(recipe: Recipe, results: Sequence[BenchmarkResult], data: TrainingData, *, at_home: bool) -> list[str]:
    limits = ["Trained and scored on the data named here; other domains, languages and wordings are untested."]
    if at_home:
        limits.append("Its base model has no name on the Hub: only d2e-sft on the machine of the training finds it.")
    if not results:
        limits.append("Nothing is known about its quality: it has not been scored.")
    elif partial := [result.name for result in results if result.partial]:
        limits.append(f"Scored on a subset of {', '.join(partial)}: see the width of the intervals.")
    if not data.described:
        limits.append("The licences of its training data are unknown.")
    if recipe.decoding.alpha > 0:
        limits += [
            f"The scores hold for the α that they name; the default in `custom_generate/generate.py` is "
            f"{recipe.decoding.alpha:g}.",
            "Decoding runs two streams, so each token costs up to two; a prompt without a context is decoded plainly.",
        ]
    return [*limits, "It can be wrong, and say what the context does not: check answers that matter."]


def _code(template: str) -> str:
    text = template.replace("\n", "⏎")
    return inline_code(one_line(text))
