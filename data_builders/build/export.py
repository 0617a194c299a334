"""Write samples as pairs of prompt and answer for other trainers: one JSON-lines file for each split and view.

`trl` has the columns `prompt` and `completion`; `llamafactory` and `axolotl` have `messages`, which end in the answer.
`jsonl` has `prompt`, `answer` and what else a trainer may need. A row that a format cannot hold is an error,
since its trainer would skip it or compute another loss. Rejected answers are in a file of their own (`trl`) or in a
column (`jsonl`), or are left out and counted.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from d2e_sft import __version__
from d2e_sft.config.objectives import View
from d2e_sft.data.built import manifest_of, warn_if_changed
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import EventSample, read_samples
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import load_package_yaml, sha256_of, write_json
from d2e_sft.util.markup import harmless_markdown, harmless_yaml
from data_builders.build.writing import DATASET_INFO, EXPORTED, check_early, check_target, write_outputs
from data_builders.dataset import EXPORT, PROJECT, files_of, is_ours, restricted

ExportFormat = Literal["trl", "llamafactory", "axolotl", "jsonl"]
FORMATS: tuple[ExportFormat, ...] = get_args(ExportFormat)
_ABOUT = load_package_yaml(Path(__file__).with_suffix(".yaml"))
_PREFERENCE = "-preference"  # ends the names of files with pairs of answers
_ANOTHER = "choose --format jsonl, which has the loss of each row, or leave the row out"
_FIELDS = {"id", "dataset", "split", "relation", "format", "answers"}  # of samples in rows of jsonl

Turns = list[dict[str, str]]


def export(
    data: Path,
    out: Path,
    fmt: ExportFormat,
    *,
    views: Sequence[View] = ("original",),
    prompt_set: str = "default",
    overwrite: bool = False,
) -> tuple[dict[str, int], int]:
    """Write the pairs with a manifest and a card; return the rows of each file, and the rejected answers left out.

    Args:
        data: Build folder, or file of samples.
        prompt_set: Name or file of the wording.

    Raises:
        UserError: `out` exists, the data cannot be read, a refined view is missing, or the format cannot hold a row.
    """
    check = partial(_check_out, out, overwrite=overwrite)
    check_early(out, check)
    wording, left_out = load_prompt_set(prompt_set), 0
    files = {path: read_samples(path) for path in files_of(data)}
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    earlier_turns = dict[str, str]()  # loss → the first row with earlier assistant turns
    for path in files:
        warn_if_changed(path, sha256_of(path))
    numbered = ((path, number, row) for path, samples in files.items() for number, row in enumerate(samples, start=1))
    for path, number, sample in numbered:
        where = f"{path}, line {number}"
        talk = sample.conversation
        if talk is not None and talk.earlier_answers:
            earlier_turns.setdefault(talk.loss, where)
        if fmt == "llamafactory" and len(earlier_turns) > 1:
            first, second = (f"{place} trains on {loss}" for loss, place in earlier_turns.items())
            problem = "llamafactory trains on all assistant turns of a dataset, or on the last one of each row"
            raise UserError(f"{problem}; but {first} and {second}", "choose --format axolotl, or export two files")
        pair = sample.rejected_answers  # as `d2e.objective=prefer` would train on it
        rejected = "" if pair is None else wording.response(sample.model_copy(update={"answers": pair[1]}))
        left_out += bool(rejected) and fmt in ("llamafactory", "axolotl")
        for view in views:
            if view == "refined" and sample.refined_context is None:
                remedy = "build the data with refined contexts, or leave refined out of --views"
                raise UserError(f"{where}: has no refined context, and the refined view needs one", remedy)
            turns = [*wording.messages(sample, view), {"role": "assistant", "content": wording.response(sample)}]
            if problem := _problem(fmt, sample, turns):
                raise UserError(f"{where}: {fmt} cannot hold the {view} view: {problem}", _ANOTHER)
            rows[f"{sample.split}-{view}.jsonl"].append(_row(fmt, sample, view, turns, rejected))
            if rejected and fmt == "trl":
                answers = {"chosen": turns[-1:], "rejected": [{"role": "assistant", "content": rejected}]}
                preference = {"id": sample.id, "prompt": turns[:-1], **answers}
                rows[f"{sample.split}-{view}{_PREFERENCE}.jsonl"].append(preference)
    counts = {name: len(pairs) for name, pairs in rows.items()}
    described = {
        **_description(files),
        EXPORT: {
            "format": fmt,
            "views": list(views),
            "prompt_set": {"name": wording.name, "sha256": wording.digest()},
            "samples": {path.name: sha256_of(path) for path in files},
            "rows": counts,
            "last_turn_only": "last" in earlier_turns,
        },
    }
    write_outputs(out, partial(_fill, fmt, rows), described, partial(_card, out.name), EXPORTED, check)
    return counts, left_out


def _check_out(out: Path, *, overwrite: bool) -> None:
    """Raise UserError if `out` cannot be written, or holds something to keep."""
    # Those that are at work there have hidden names.
    if not (out.is_dir() and any(not path.name.startswith(".") for path in out.iterdir())):
        check_target(out, overwrite=overwrite)
    elif not overwrite:
        raise UserError(f"{out}: already exists", "name another folder with --out, or add --overwrite")
    elif not is_ours(out, exported=True):
        raise UserError(f"{out}: is no export, so --overwrite would not replace it", "name another folder")


def _problem(fmt: ExportFormat, sample: EventSample, turns: Turns) -> str:
    """Return why a format cannot hold a sample's conversation; empty if it can."""
    if fmt == "jsonl":
        return ""
    talk, roles = sample.conversation, [turn["role"] for turn in turns]
    if fmt == "trl" and talk is not None and talk.loss == "all" and talk.earlier_answers:
        return "it trains on the earlier assistant turns too, and a completion is the last turn only"
    if fmt == "trl" and len(turns) == 1:
        return "nothing is before the answer; expected a prompt"
    spoken = roles[1:] if roles[0] == "system" else roles
    if fmt == "llamafactory" and (
        len(spoken) % 2
        or any((role == "assistant") != (place % 2 == 1) for place, role in enumerate(spoken))
        or "system" in spoken
    ):
        return (
            f"got the turns {', '.join(roles)}; expected user (or tool) and assistant in turn after a system message"
        )
    return ""


def _row(fmt: ExportFormat, sample: EventSample, view: View, turns: Turns, rejected: str) -> dict[str, Any]:
    """Return the row of a format; the last turn is the answer."""
    if fmt == "trl":
        return {"id": sample.id, "prompt": turns[:-1], "completion": turns[-1:]}
    if fmt == "llamafactory":
        return {"id": sample.id, "messages": turns}
    loss = sample.conversation.loss if sample.conversation else "last"
    if fmt == "jsonl":
        pair = {"view": view, "prompt": turns[:-1], "answer": turns[-1]["content"], "loss": loss, "rejected": rejected}
        return sample.model_dump(include=_FIELDS) | pair
    trained = [loss == "all" and turn["role"] == "assistant" for turn in turns[:-1]]
    messages = [{**turn, "training": use} for turn, use in zip(turns, [*trained, True], strict=True)]
    return {"id": sample.id, "messages": messages}


def _fill(fmt: ExportFormat, rows: Mapping[str, list[dict[str, Any]]], folder: Path) -> None:
    for name, pairs in rows.items():
        with (folder / name).open("w", encoding="utf-8") as out:
            out.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in pairs)
    if fmt == "llamafactory":
        write_json(
            folder / DATASET_INFO,
            {Path(name).stem: {"file_name": name, **_ABOUT[fmt]["dataset_info"]} for name in rows},
        )


def _description(files: Mapping[Path, Sequence[EventSample]]) -> dict[str, Any]:
    """Return the manifest of the build; for rows that no build describes, one that does not allow to publish them."""
    for path in files:
        if (built := manifest_of(path)) is not None:
            return built
    datasets: dict[str, dict[str, Any]] = {}
    for path, samples in files.items():
        for (name, split), count in Counter((sample.dataset, sample.split) for sample in samples).items():
            entry = {"redistribution": f"no build describes the rows of {path.name}", "splits": {}}
            datasets.setdefault(name, entry)["splits"][split] = {"rows_written": count}
    return {"project": PROJECT, "version": __version__, "datasets": datasets}


def _card(folder: str, manifest: Mapping[str, Any]) -> str:
    """Return the README: front matter that `datasets.load_dataset` reads, the rows, and how a trainer reads them."""
    exported = manifest[EXPORT]
    texts, configs = _ABOUT[exported["format"]], dict[str, dict[str, str]]()
    for name in exported["rows"]:
        split, _, view = Path(name).stem.partition("-")
        configs.setdefault(view, {})["validation" if split == "dev" else split] = name
    title = f"Pairs of prompt and answer for {texts['title']}"
    files = [
        {"config_name": view, "data_files": [{"split": split, "path": name} for split, name in paths.items()]}
        for view, paths in configs.items()
    ]
    view, paths = next(iter(configs.items()))
    split, name = next(iter(paths.items()))
    usage = texts["usage"].format(folder=folder, view=view, split=split, name=Path(name).stem)
    if preference := next((view for view in configs if view.endswith(_PREFERENCE)), None):
        usage += texts["preference"].format(folder=folder, view=preference, split=next(iter(configs[preference])))
    if exported["format"] == "llamafactory" and exported["last_turn_only"]:
        usage += "mask_history: true  # train on the last turn only, as these conversations do\n"
    closed = [f"> - **{name}**: {reason}\n" for name, reason in restricted(manifest).items()]
    if closed:
        closed = ["> **Do not publish these rows.** Their sources do not allow it:\n>\n", *closed, "\n"]
    text = _ABOUT["card"].format(
        title=title,
        datasets=", ".join(manifest["datasets"]),
        wording=exported["prompt_set"]["name"],
        closed="".join(closed),
        files="\n".join(f"| {name} | {count:,} |" for name, count in exported["rows"].items()),
        language=texts["language"],
        usage=usage,
        version=manifest["version"],
        format=exported["format"],
    )
    front = harmless_yaml({"pretty_name": title, "tags": ["d2e-sft"], "configs": files})
    return f"---\n{front}---\n\n{harmless_markdown(text)}"
