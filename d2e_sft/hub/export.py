"""A run as a self-contained folder; its only path of this machine is an adapter's base that was a local folder."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from d2e_sft import __version__
from d2e_sft.config.recipe import RECIPE_FILE, Recipe, recipe_of
from d2e_sft.data.prompts import PromptSet, load_prompt_set
from d2e_sft.hub.card import CARD_NAME, model_card
from d2e_sft.hub.client import EXPORT_FILE, check_new_folder, check_no_link
from d2e_sft.hub.results import SCORES_FILE, read_scores
from d2e_sft.hub.weights import AS_TRAINED, ExportOptions, write_weights
from d2e_sft.model.storage.folder import base_of_adapter, check_model_files
from d2e_sft.model.storage.seal import read_seal, seal
from d2e_sft.train.data_record import DATA_FILE, data_file_of, trained_wording
from d2e_sft.util.errors import UserError
from d2e_sft.util.files import replacing_folder, with_checksums, write_json

PROMPT_SET_FILE = "prompt_set.yaml"


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
    for source in filter(None, (str(run), base_of_adapter(run))):
        if Path(source).exists() and Path(source).resolve().is_relative_to(out.resolve()):
            raise UserError(f"{source}: is in {out}, which --overwrite would replace", "choose another folder")
    for path in run.glob("eval/*/*"):
        check_no_link(path, run)
    with replacing_folder(out, overwrite=overwrite) as aside:
        prompt_set = load_prompt_set(trained_wording(str(run), recipe.data.prompt_set), recipe.data.form)
        write_weights(run, recipe, aside, options)
        adapter = base_of_adapter(aside) is not None
        card = model_card(run, recipe, prompt_set, adapter=adapter, licence=options.licence)
        (aside / CARD_NAME).write_text(card, encoding="utf-8")
        _write_generate(aside, recipe.decoding.alpha)
        _write_record(run, aside, recipe, prompt_set)
        _seal(run, aside)
        written = [path.relative_to(aside).as_posix() for path in aside.rglob("*") if path.is_file()]
        files = sorted([*written, EXPORT_FILE])
        about = {"project": "d2e-sft", "version": __version__, "adapter": adapter, "files": files}
        write_json(aside / EXPORT_FILE, about)
    return files


def exported_files(folder: Path) -> list[str] | None:
    """Return the files that an export lists, None without a list; UserError if it is malformed or one is outside."""
    listed = folder / EXPORT_FILE
    try:
        files = [str(file) for file in json.loads(listed.read_text(encoding="utf-8"))["files"]]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{listed}: is not readable as the list of an export", "export the run again") from None
    if missing := [file for file in files if not (folder / file).is_file()]:
        raise UserError(
            f"{folder}: {', '.join(missing)}: no such file, but {EXPORT_FILE} lists it", "export the run again"
        )
    for file in files:  # the list may come from others and name any file of this machine
        check_no_link(folder / file, folder)
    return files


def _write_generate(out: Path, alpha: float) -> None:
    """Write this package's file with the run's α as its default."""
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
