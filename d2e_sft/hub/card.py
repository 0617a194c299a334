"""The model card: a run's method, data and scores as the Hub's README.md; the same run gives the same bytes.

`ModelCard` of huggingface_hub reads what is written here; it cannot write it, since names of others must stay text.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import jinja2
import yaml
from huggingface_hub import ModelCardData

from d2e_sft import __version__
from d2e_sft.config.objectives import BASE, spec_of
from d2e_sft.config.recipe import D2ESection, Recipe, View
from d2e_sft.data.built import manifest_of
from d2e_sft.data.chat_template import CUED, Form, merged_system, takes_system
from d2e_sft.data.conversation import CONTEXT, Conversation, Turn, prompt_turns
from d2e_sft.data.data_record import data_file_of, wording_of
from d2e_sft.data.prompts import DEFAULT, NEUTRAL, OWN, PromptSet
from d2e_sft.data.sample import EventSample, Format
from d2e_sft.hub.results import CardResult, benchmark_results, eval_results
from d2e_sft.model.loading import load_tokenizer
from d2e_sft.model.storage.folder import BUILTIN, BUILTIN_HUB_NAME, base_of_adapter
from d2e_sft.util.files import sha256_of
from d2e_sft.util.markup import harmless_markdown, harmless_yaml, inline_code, one_line
from d2e_sft.util.table import Table

CARD_NAME = "README.md"
PLACEHOLDER = "OWNER/NAME"  # in an exported card; a push replaces it by the repository's name
PAPER = "PIPER: Benchmarking and Prompting Event Reasoning Boundary of LLMs via Debiasing-Distillation Enhanced Tuning"


def model_card(run: Path, recipe: Recipe, prompt_set: PromptSet, *, adapter: bool, licence: str | None = None) -> str:
    """Return the card's text, with `OWNER/NAME` instead of the repository's name; `adapter`: the export is unmerged.

    `licence` is the Hub's name of the weights' licence; None means unknown, unless the base is known.
    """
    results = benchmark_results(run)
    data = training_data(run, recipe)
    names = wording_of(str(run)) or [OWN if data.only_chats else prompt_set.name]
    tokenizer, encoder_decoder = load_tokenizer(str(run))
    style = "plain" if prompt_set.as_text else style_of(tokenizer)
    system, prompts = example_prompts(prompt_set, data, _example_format(prompt_set, results), style)
    if not recipe.decoding.alpha:
        del prompts["imagined"]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), undefined=jinja2.StrictUndefined, autoescape=False
    )
    environment.filters["harmless"] = harmless_markdown
    environment.filters["literal"] = lambda value: json.dumps(value, ensure_ascii=False)
    d2e = recipe.d2e
    text = environment.get_template("card.md.jinja").render(
        card_data=harmless_yaml(_card_data(run, recipe, adapter, licence, results, data).to_dict()).strip(),
        title=_title(run),
        version=__version__,
        recipe=recipe,
        base=hub_base(recipe),
        base_name=Path(recipe.model.name).name,
        spec=spec_of(d2e.objective),
        plain=spec_of("sft" if d2e.views == ("original",) and not d2e.prefers else d2e.objective).about,
        facts=[(name, one_line(value)) for name, value in _facts(recipe, adapter, names, as_text=prompt_set.as_text)],
        adapter=adapter,
        local_base=adapter and not portable_adapter(run),
        encoder_decoder=encoder_decoder,
        style=style,
        placeholder=PLACEHOLDER,
        system=system,
        prompts=prompts,
        formats="" if data.only_chats else _formats(prompt_set),
        two_sets={DEFAULT, NEUTRAL} <= {*names},
        wording=_chat_wording(data),
        results=results,
        data=data,
        paper=PAPER,
    )
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def hub_base(recipe: Recipe) -> str | None:
    """Return the base model's name on the Hub; None if it is a folder, or only its architecture is used."""
    name = recipe.model.name
    if recipe.model.weights == "random":
        return None
    if name == BUILTIN:
        return BUILTIN_HUB_NAME
    return name if _is_on_the_hub(name) else None


def portable_adapter(run: Path) -> bool:
    """Whether others can load the base that an adapter names, because it has a name on the Hub."""
    return _is_on_the_hub(base_of_adapter(run) or "")


def _is_on_the_hub(name: str) -> bool:
    return re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) is not None and not Path(name).exists()


def _card_data(
    run: Path, recipe: Recipe, adapter: bool, licence: str | None, results: Sequence[CardResult], data: TrainingData
) -> ModelCardData:
    base = hub_base(recipe)
    known = "apache-2.0" if recipe.model.name == BUILTIN else "unknown"
    card_data = ModelCardData(
        license=licence or known,
        language="en" if data.described and not data.own else None,  # that of a user's own data is unknown
        library_name="peft" if adapter else "transformers",
        pipeline_tag="text-generation",
        base_model=base,
        tags=[*(["event-reasoning"] if data.relations - {"none"} else []), "d2e-sft", "custom_generate"],
        model_name=_title(run) if results else None,
        eval_results=eval_results(results) or None,
    )
    if base is not None:
        card_data["base_model_relation"] = "adapter" if adapter else "finetune"
    return card_data


def _title(run: Path) -> str:
    folder = run.resolve()
    return f"{folder.parent.name}-{folder.name}" if folder.name.startswith("checkpoint-") else folder.name


def _facts(recipe: Recipe, adapter: bool, names: Sequence[str], *, as_text: bool) -> list[tuple[str, str]]:
    wording = ", ".join(name if name == OWN else f"`{name}`" for name in names)
    d2e, train, lora = recipe.d2e, recipe.train, recipe.model.lora
    tuned = "full weights" if lora is None else f"LoRA, r = {lora.r}, alpha = {lora.lora_alpha}"
    if lora is not None and recipe.model.quantization:
        tuned += f", base in {recipe.model.quantization}"
    if lora is not None and not adapter:
        tuned += "; merged here"
    divergence = "KL({} ‖ {})".format(*d2e.kl_direction.split("_"))
    divergence = divergence if d2e.distils_both_ways else "KL(refined, detached ‖ original)"
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
        *([("preference", _preference(d2e))] if d2e.prefers else []),
        ("prompt set", wording + ", as one text that is continued" * as_text),
        (
            "optimisation",
            f"learning rate {train.learning_rate:g}, batch {train.batch_size}, "
            + (f"{train.max_steps} steps" if train.max_steps > 0 else f"{train.num_train_epochs:g} epochs")
            + f", warm-up {train.warmup_steps:g}, {train.precision}, seed {train.seed}",
        ),
    ]


def _preference(d2e: D2ESection) -> str:
    margin = f", γ = {d2e.prefer_gamma:g}" if d2e.prefer_form == "simpo" else ""
    base = "the model before training" if d2e.prefer_reference == BASE else f"`{d2e.prefer_reference}`"
    reference = f", reference: {base}" if d2e.needs_reference else ""
    return f"{d2e.prefer_form}, β = {d2e.beta:g}{margin}{reference}; cross entropy × {d2e.sft_weight:g}"


def _example_format(prompt_set: PromptSet, results: Sequence[CardResult]) -> Format:
    """Return the format of most scored samples."""
    counts: Counter[Format] = Counter()
    for group in (group for result in results for group in result.groups):
        if group["format"] in prompt_set.zero_shot:
            counts[group["format"]] += group["n"]
    if counts:
        return counts.most_common(1)[0][0]
    return "qa" if "qa" in prompt_set.zero_shot else next(iter(prompt_set.zero_shot))


def _chat_wording(data: TrainingData) -> str:
    keys, blocks = ("system", "prompt", "context_in", "context_block", "loss"), list[str]()
    for name, chat in data.chats.items():
        described = {key: chat[key] for key in keys if chat.get(key)} or {"context_in": "<context>"}
        text = yaml.safe_dump(described, sort_keys=False, allow_unicode=True)
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
        title = "" if data.only_chats and len(data.chats) == 1 else f"{inline_code(one_line(name))}:\n\n"
        blocks.append(f"{title}{fence}yaml\n{text}{fence}")
    return "\n\n".join(blocks)


def _formats(prompt_set: PromptSet) -> str:
    rows = [
        (fmt, *(inline_code(one_line(text.replace("\n", "⏎"))) for text in (wording.context, wording.user)))
        for fmt, wording in prompt_set.zero_shot.items()
    ]
    return Table.of(("format", "context line", "prompt"), rows).markdown(escape=False)


# The training data, from the manifest that lists the file's checksum.
_COLUMNS = ("dataset", "relations", "rows", "licence", "publishing its rows again")


@dataclass(frozen=True)
class TrainingData:
    text: str  # Markdown, with a table of the datasets if they are known
    described: bool = False  # by a manifest
    own: bool = False  # whether some of it is described by its user
    relations: frozenset[str] = frozenset()
    chats: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # dataset → description of its wording
    only_chats: bool = False


def training_data(run: Path, recipe: Recipe) -> TrainingData:
    """Return what is known about a run's training data."""
    train = Path(recipe.data.train)
    try:
        record = json.loads(data_file_of(run).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        record = {}
    source = record.get("source", {})
    sha256 = source.get("train_sha256") or (sha256_of(train) if train.is_file() else None)
    samples, rows = record.get("samples"), source.get("rows")
    count = "Samples" if samples is None else f"{samples:,} samples"
    of_rows = f" of {rows:,} rows" if samples is not None and rows not in (None, samples) else ""
    begin = f"{count}{of_rows} of `{'/'.join(train.parts[-2:])}`."
    manifest = manifest_of(train)
    entries = {}
    for name, entry in (manifest or {}).get("datasets", {}).items():
        split = entry.get("splits", {}).get(train.stem, {})
        if split.get("rows_written"):
            entries[name] = {**entry, **split}
    unknown = None
    if manifest is None:
        unknown = "no manifest of a build next to the file"
    elif sha256 is None or manifest.get("outputs", {}).get(train.name, {}).get("sha256") != sha256:
        unknown = "the manifest next to the file describes other rows"
    elif not entries:
        unknown = "the manifest next to the file lists none of its rows"
    if unknown:
        return TrainingData(f"{begin} Licences: unknown ({unknown}).")
    table = Table.of(_COLUMNS, [_cells(name, entry) for name, entry in entries.items()]).markdown(escape=False)
    counts = _changed_rows(manifest or {}, train.stem, entries.values())
    text = f"{begin}{counts} The file's sources, with the licences of their raw data:\n\n{table}"
    relations = {name for entry in entries.values() for name in entry.get("rows_by_relation", {})}
    described = {name: entry.get("described_by", {}).get("content", {}) for name, entry in entries.items()}
    chats = {name: described[name] for name, entry in entries.items() if entry.get("format") == "chat"}
    own, only_chats = any(described.values()), len(chats) == len(entries)
    return TrainingData(text, True, own, frozenset(relations), chats, only_chats)


def _changed_rows(manifest: Mapping[str, Any], split: str, entries: Iterable[Mapping[str, Any]]) -> str:
    """Return a sentence on the swapped and the tagged rows of a file; empty without any."""
    swaps = manifest.get("swap", {}).get("datasets", {}).values() if split == "train" else ()
    swapped, subsets = sum(swap["swapped"] for swap in swaps), Counter[str]()
    for entry in entries:
        subsets.update(entry.get("rows_by_subset", {}))
    said = [f"{swapped:,} are swapped"] if swapped else []
    if subsets:
        names = ", ".join(f"{count:,} {name}" for name, count in sorted(subsets.items()))
        said.append(f"{subsets.total():,} are tagged ({names})")
    return f" Of the file's rows, {' and '.join(said)}." if said else ""


def _cells(name: str, entry: Mapping[str, Any]) -> list[str]:
    return [
        f"[{name}]({entry['homepage']})" if entry.get("homepage") else name,
        ", ".join(entry.get("rows_by_relation", {})),
        f"{entry['rows_written']:,}",
        one_line(entry.get("licence") or "unknown"),
        one_line(entry.get("redistribution") or "unknown"),
    ]


# The example of the card's program, worded as in training, with and without its context.
Style = Literal["system", "merged", "plain"]
_CONTEXT = "The dam broke at noon. By one the road was gone."
_EXAMPLES: dict[Format, dict[str, Any]] = {
    "qa": {"question": "Why was the road gone?", "answers": ["the dam broke"]},
    "nli": {"question": "The road was gone before the dam broke.", "answers": ["negative"]},
    "scq": {
        "question": "Why was the road gone?",
        "options": ["The dam broke.", "The road was sold."],
        "answers": ["The dam broke."],
    },
    "mcq": {
        "question": "Which came before the road was gone?",
        "options": ["The dam broke.", "It became noon.", "It became two."],
        "answers": ["The dam broke.", "It became noon."],
    },
}
_POLICIES = {"original": "Goods may be returned within 30 days.", "imagined": ""}
_ASKED = "How long may I return the lamp?"


def example_prompts(
    prompt_set: PromptSet, data: TrainingData, fmt: Format, style: Style
) -> tuple[str | None, dict[str, Any]]:
    """Return the system message and both views' user messages; of chats and texts, conversations without a system."""
    if data.only_chats:
        conversation = example_conversation(next(iter(data.chats.values())))
        form: Form = "completion" if prompt_set.as_text else "chat"
        prompts = {name: CUED.shaped(conversation.messages(text), form) for name, text in _POLICIES.items()}
        return None, {name: merged_system(turns) if style == "merged" else turns for name, turns in prompts.items()}
    sample = EventSample(
        id="example", dataset="example", split="test", relation="none" if data.relations == {"none"} else "causal",
        format=fmt, context=_CONTEXT, **_EXAMPLES[fmt],
    )  # fmt: skip
    views: tuple[View, View] = ("original", "imagined")
    original, imagined = (prompt_set.messages(sample, view) for view in views)
    if prompt_set.as_text:
        return None, {"original": original, "imagined": imagined}
    return original[0]["content"], {"original": original[1]["content"], "imagined": imagined[1]["content"]}


def example_conversation(chat: Mapping[str, Any]) -> Conversation:
    """Return a question about a policy, worded as the description of chat data says."""
    if prompt := chat.get("prompt"):
        return prompt_turns(prompt, chat.get("system", ""), _ASKED)
    place = str(chat.get("context_in", "<context>"))
    question = Turn(role="user", content=_ASKED)
    if "context" in chat.get("columns", {}):
        block = str(chat.get("context_block") or f"{CONTEXT}\n\n").replace("\\n", "\n")
        return Conversation(turns=[question], context_turn=0, context_block=block)
    if place.startswith("<"):
        return Conversation(turns=[question], context_turn=0, context_block=f"{place}{CONTEXT}</{place[1:]}\n")
    if place == "none":
        return Conversation(turns=[question])
    return Conversation(turns=[Turn.model_validate({"role": place, "content": ""}), question], context_turn=0)


def style_of(tokenizer: Any) -> Style:
    """Return how `d2e_sft.data.chat_template` turns a conversation into this tokenizer's prompt."""
    if not getattr(tokenizer, "chat_template", None):
        return "plain"
    return "system" if takes_system(tokenizer) else "merged"
