"""A run as a self-contained folder, which a push makes a model repository of the Hub.

Weights are copied, cast or merged; card, recipe and scores are with them. The folder's only path of this machine is an
adapter's base that was a local folder.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from d2e_sft import __version__
from d2e_sft.config.recipe import RECIPE_FILE, Recipe, recipe_of
from d2e_sft.data.chat_template import ChatEncoder, merged_stop_ids, pad_id
from d2e_sft.data.data_record import DATA_FILE, data_file_of, trained_wording
from d2e_sft.data.prompts import PromptSet, load_prompt_set
from d2e_sft.hub.card import CARD_NAME, PLACEHOLDER, model_card, portable_adapter
from d2e_sft.hub.client import (
    EXPORT_FILE,
    check_name,
    check_new_folder,
    check_no_link,
    commit,
    full_name,
    writing_api,
)
from d2e_sft.hub.results import SCORES_FILE, read_scores
from d2e_sft.model.loading import adapter_on, load_model, load_tokenizer
from d2e_sft.model.storage.folder import base_of_adapter, check_model_files, resolve_name, warn_of_other_weights
from d2e_sft.model.storage.seal import read_seal, seal
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import replacing_folder, with_checksums, write_json
from d2e_sft.util.startup import bars_if_slow

if TYPE_CHECKING:
    from torch import Tensor

PROMPT_SET_FILE = "prompt_set.yaml"
_TOKENIZER = (
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "chat_template*", "vocab*", "merges.txt"),
    "*.model",  # sentencepiece
)
_FULL = ("*.safetensors", "*.safetensors.index.json", "config.json", "generation_config.json")
_ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
_GENERATION = (
    *("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"),
    *("max_length", "max_new_tokens", "do_sample", "temperature", "top_k", "top_p", "min_p"),  # servers' defaults
)

# Deleted if not pushed again: an old adapter would be loaded with new full weights, and an old chat template with a
# model that has none.
_REPLACED = (
    *("*.safetensors", "*.safetensors.index.json", "adapter_config.json", "config.json", "generation_config.json"),
    *("eval/*", "custom_generate/*"),
    *_TOKENIZER,
)

# Shares of the largest logit. A merged weight is rounded once, in bfloat16 by up to 1/256.
_TOLERANCES = {"float32": 1e-3, "bfloat16": 5e-2, "float16": 1e-2}
_PROBES = (
    "The rain stopped at noon. The road was dry by three. What happened first?",
    "Nadia put the key into the drawer and left. Felix moved it to the shelf. Where is the key now?",
    "List what a baker does before the shop opens, in order.",
)


@dataclass(frozen=True)
class ExportOptions:
    """How a run becomes a folder."""

    merge: bool = False  # merge an adapter into its base model, and check its logits
    dtype: str | None = None  # None keeps that of the weights, and merges in the recipe's `model.dtype`
    licence: str | None = None  # the Hub's name of the weights' licence
    link: bool = False  # unchanged files may be hard links to the run's


AS_TRAINED = ExportOptions()


def export(run: Path, out: Path, options: ExportOptions = AS_TRAINED, *, overwrite: bool = False) -> list[str]:
    """Write a run, or one of its checkpoints, as the new folder `out`, and return the paths of its files.

    `overwrite` replaces an earlier export in `out`. Raises UserError if there is no run or finished model, `out` is
    not empty, or an option is unsupported.
    """
    recipe = recipe_of(str(run))
    if recipe is None:
        raise UserError(
            f"{run}: no run (no {RECIPE_FILE}); expected a folder that `d2e train` wrote",
            remedy="name the run folder, or one of its checkpoint-N folders",
        )
    check_model_files(run)
    check_new_folder(out, overwrite=overwrite)
    for scores in sorted(run.glob(f"eval/*/{SCORES_FILE}")):
        warn_of_other_weights(scores.parent, str(run))
    for source in filter(None, (str(run), base_of_adapter(run))):
        if Path(source).exists() and Path(source).resolve().is_relative_to(out.resolve()):
            raise UserError(f"{source}: is in {out}, which --overwrite would replace", "choose another folder")
    for path in run.glob("eval/*/*"):
        check_no_link(path, run)
    with replacing_folder(out, overwrite=overwrite) as aside:
        prompt_set = load_prompt_set(trained_wording(str(run), recipe.data.prompt_set), recipe.data.form)
        _write_weights(run, recipe, aside, options)
        adapter = base_of_adapter(aside) is not None
        card = model_card(run, recipe, prompt_set, adapter=adapter, licence=options.licence)
        (aside / CARD_NAME).write_text(card, encoding="utf-8")
        _write_generate(aside, recipe.decoding.alpha)
        _write_record(run, aside, recipe, prompt_set)
        _seal(run, aside)
        written = [path.relative_to(aside).as_posix() for path in aside.rglob("*") if path.is_file()]
        files = sorted([*written, EXPORT_FILE])
        record = {"project": "d2e-sft", "version": __version__, "adapter": adapter, "files": files}
        write_json(aside / EXPORT_FILE, record)
    return files


def exported_files(folder: Path) -> list[str] | None:
    """Return the files that an export lists, None without a list; UserError if it is malformed or one is outside."""
    path = folder / EXPORT_FILE
    try:
        files = [str(file) for file in json.loads(path.read_text(encoding="utf-8"))["files"]]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path}: is not readable as the list of an export", "export the run again") from None
    if missing := [file for file in files if not (folder / file).is_file()]:
        raise UserError(
            f"{folder}: {', '.join(missing)}: no such file, but {EXPORT_FILE} lists it", "export the run again"
        )
    for file in files:  # the list may come from others and name any file of this machine
        check_no_link(folder / file, folder)
    return files


def _write_generate(out: Path, alpha: float) -> None:
    source = Path(__file__).with_name("custom_generate") / "generate.py"
    text, count = re.subn(r"(?m)^DEFAULT_ALPHA = .*$", f"DEFAULT_ALPHA = {alpha!r}", source.read_text("utf-8"))
    assert count == 1, "generate.py has one line for the default"
    (out / "custom_generate").mkdir()
    (out / "custom_generate" / "generate.py").write_text(text, encoding="utf-8")


def _write_record(run: Path, out: Path, recipe: Recipe, prompt_set: PromptSet) -> None:
    """Write recipe, scores and wording, so the card can be verified and the model evaluated again."""
    wording = prompt_set.model_dump(exclude_none=True)
    for name, content, width in ((RECIPE_FILE, _portable(recipe.model_dump()), 80), (PROMPT_SET_FILE, wording, 100)):
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=width)
        (out / name).write_text(text, encoding="utf-8")
    if (data := data_file_of(run)).is_file():  # names the prompt sets that worded the rows
        write_json(out / DATA_FILE, _portable(json.loads(data.read_text(encoding="utf-8"))))
    for path in sorted(run.glob(f"eval/*/{SCORES_FILE}")):
        write_json(out / path.relative_to(run), with_checksums(_portable(read_scores(path))))


def _seal(run: Path, out: Path) -> None:
    """Write checksums of model, tokenizer and recipe, and of an adapter's base; the card may be edited."""
    base = base_of_adapter(out)
    depends_on = {name: sums for name, sums in read_seal(run).depends_on.items() if name == base}
    seal(out, (path for path in out.iterdir() if path.is_file() and path.name != CARD_NAME), depends_on)


def _portable(value: Any) -> Any:
    """Cut absolute paths to their last two parts."""
    if isinstance(value, dict):
        return {key: _portable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_portable(item) for item in value]
    if isinstance(value, str) and Path(value).is_absolute():
        return "/".join(Path(value).parts[1:][-2:])
    return value


def _write_weights(run: Path, recipe: Recipe, out: Path, options: ExportOptions) -> None:
    """Write weights, configuration, tokenizer and generation config; a merge must not change the logits."""
    resolve_name(str(run))
    base, dtype = base_of_adapter(run), options.dtype or recipe.model.dtype
    if base is not None and not options.merge and options.dtype is not None:
        raise UserError(
            f"--dtype {dtype}: {run} is an adapter, which is exported as it was trained",
            remedy="add --merge for a whole model, or leave --dtype out",
        )
    if base is None and options.merge:
        raise UserError(f"--merge: {run} is a whole model, with nothing to merge", "leave --merge out")
    if options.merge or options.dtype is not None:
        loaded = load_model(str(run), dtype=dtype)
        with bars_if_slow():
            loaded.model.save_pretrained(out)
        loaded.tokenizer.save_pretrained(out)
        del loaded  # the check loads it again
        for path in out.glob("*.safetensors"):  # written readable only for their owner
            path.chmod(0o644)
        if base is not None:
            _check_merged(out, run, base, dtype)
    else:
        from d2e_sft.model.finite import refuse_non_finite_files  # imports torch

        refuse_non_finite_files(run, str(run))
        _copy(run, out, (*(_FULL if base is None else _ADAPTER), *_TOKENIZER), link=options.link)
    _write_generation_config(run, out, as_text=recipe.data.form == "completion")
    # Training turns the cache off in the model's configuration; decoding needs it.
    path = out / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if config.get("use_cache") is False:
        path.unlink()  # it may be a link to the run's
        path.write_text(json.dumps({**config, "use_cache": True}, indent=2) + "\n", encoding="utf-8")


def _check_merged(folder: Path, run: Path, base: str, dtype: str) -> None:
    """Raise UserError unless the model in `folder` has the logits of base and adapter."""
    adapted = adapter_on(load_model(base, dtype=dtype).model, run)
    tokenizer, encoder_decoder = load_tokenizer(str(run))
    encoder = ChatEncoder(tokenizer, encoder_decoder=encoder_decoder, as_text=not tokenizer.chat_template)
    prompts = encoder.ids([[{"role": "user", "content": text}] for text in _PROBES])
    expected, merged = (_logits(model, prompts) for model in (adapted, load_model(str(folder), dtype=dtype).model))
    difference = ((merged - expected).abs().max() / expected.abs().max()).item()
    if not difference <= _TOLERANCES[dtype]:  # NaN included
        raise UserError(
            f"{run}: the merged model's logits differ from the adapter's by {difference:.1e} of the largest one; "
            f"expected at most {_TOLERANCES[dtype]:g} in {dtype}, so nothing was written",
            remedy="merge in float32 (--dtype float32), or keep the adapter: leave --merge out",
        )


def _logits(model: Any, prompts: list[list[int]]) -> Tensor:
    """Return logits (tokens of all prompts, V) in float32."""
    import torch

    config, logits = model.eval().config, []
    for prompt in prompts:
        inputs = {"input_ids": torch.tensor([prompt])}
        if config.is_encoder_decoder:
            inputs["decoder_input_ids"] = torch.tensor([[config.decoder_start_token_id, *prompt]])
        with torch.no_grad():
            logits.append(model(**inputs).logits[0].float())
    return torch.cat(logits)


def _copy(run: Path, out: Path, patterns: tuple[str, ...], *, link: bool) -> None:
    files = {path.name: path for pattern in patterns for path in sorted(run.glob(pattern)) if path.is_file()}
    for path in files.values():
        check_no_link(path, run)
    for name, path in files.items():
        if link:
            try:
                os.link(path.resolve(), out / name)
                continue
            except OSError:  # another disk, or one without links
                pass
        shutil.copyfile(path, out / name)


def _write_generation_config(run: Path, out: Path, *, as_text: bool) -> None:
    """Write the base's ids and sampling options, and the token that ended answers, which a chat model may lack.

    Penalties, beams and minimal lengths are left out, as the model was scored without them.
    """
    from transformers import GenerationConfig

    tokenizer, encoder_decoder = load_tokenizer(str(run))
    end_of_turn = ChatEncoder(tokenizer, encoder_decoder=encoder_decoder, as_text=as_text).end_of_turn
    base = _generation_config(run, out)
    config = GenerationConfig(**{name: getattr(base, name) for name in _GENERATION})
    stops = merged_stop_ids(config.eos_token_id, end_of_turn)
    config.eos_token_id = stops[0] if len(stops) == 1 else stops
    if config.pad_token_id is None:
        config.pad_token_id = pad_id(tokenizer)
    path = out / "generation_config.json"
    path.unlink(missing_ok=True)  # it may be a link to the run's
    path.write_text(config.to_json_string(use_diff=True), encoding="utf-8")


def _generation_config(run: Path, out: Path) -> Any:
    from transformers import GenerationConfig

    for source in (str(out), resolve_name(base_of_adapter(run) or str(run))):
        try:
            return GenerationConfig.from_pretrained(source)
        except OSError:  # none there, or a base on the Hub and no network
            continue
    return GenerationConfig()


@dataclass(frozen=True)
class Pushed:
    """What was sent, or would be."""

    sizes: dict[str, int]  # path in the repository → bytes
    url: str | None = None  # None after a dry run
    private: bool | None = None  # whether the repository is private


def push(
    run: Path,
    name: str,
    *,
    private: bool = True,
    revision: str | None = None,
    dry_run: bool = False,
    options: ExportOptions = AS_TRAINED,
) -> Pushed:
    """Export a run and commit it to a model repository, which is created if missing.

    `run` may also be a checkpoint, or an export, which is sent unchanged. A missing `revision` is created. `dry_run`
    only lists what would be sent, and needs neither token nor network. Raises UserError without a run or token, if an
    option is unsupported, nobody else could use the adapter, or the Hub refuses.
    """
    check_name(name)
    base = None if options.merge else base_of_adapter(run)
    if base is not None and not portable_adapter(run):
        raise UserError(
            f"{run}: its adapter belongs to {base!r}, which others cannot load from the Hub",
            remedy="add --merge, or train on a base model that has a name on the Hub",
        )
    # Before an export, which may take long.
    api = None if dry_run else writing_api()
    repo = name if api is None else full_name(api, name)
    with _exported(run, options) as folder:
        files = exported_files(folder)
        assert files is not None
        card = (folder / CARD_NAME).read_text(encoding="utf-8").replace(PLACEHOLDER, repo).encode()
        content: dict[str, Path | bytes] = {**{file: folder / file for file in files}, CARD_NAME: card}
        sizes = {file: len(card) if file == CARD_NAME else (folder / file).stat().st_size for file in files}
        if api is None:
            return Pushed(sizes)
        message = f"d2e-sft: {run.resolve().name}"
        url, is_private = commit(
            api, repo, "model", content, message, private=private, revision=revision, replaced=_REPLACED
        )
        return Pushed(sizes, url, is_private)


@contextmanager
def _exported(run: Path, options: ExportOptions) -> Iterator[Path]:
    if exported_files(run) is not None:
        if options != AS_TRAINED:
            raise UserError(
                f"{run}: is an export already; --merge, --dtype and --license are for a run",
                remedy="export the run again with these options, or push without them",
            )
        from d2e_sft.model.finite import refuse_non_finite_files  # imports torch

        check_model_files(run)
        refuse_non_finite_files(run, str(run))
        for scores in run.glob(f"eval/*/{SCORES_FILE}"):
            read_scores(scores)
        yield run
        return
    # Next to the run, so unchanged weights can be hard links.
    run = run.absolute()
    place_for = run.parent if os.access(run.parent, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix=f".{run.name}.push-", dir=place_for) as place:
        folder = Path(place) / "export"
        export(run, folder, replace(options, link=True))
        yield folder
