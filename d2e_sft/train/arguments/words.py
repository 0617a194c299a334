"""Messages of a training from Python: arguments instead of a recipe's keys and of the command line's options."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

from d2e_sft.config.d2e import D2ESection
from d2e_sft.config.sections import TrainSection
from d2e_sft.train.arguments.names import FROM_OTHER_SECTIONS
from d2e_sft.util.errors import UserError

_OPTIONS = {
    "leave --resume out": "leave resume_from_checkpoint out",
    "--resume": "train(resume_from_checkpoint=True)",
    "--overwrite": "D2EConfig(overwrite_output_dir=True)",
    "--method sft": "objective='sft'",
    "model.lora": "peft_config",
}
_KEYS = {
    **{f"train.{key}": key for key in TrainSection.model_fields},
    **{f"d2e.{key}": key for key in D2ESection.model_fields},
    **{f"{section}.{key}": name for name, (section, key) in FROM_OTHER_SECTIONS.items()},
}
_LITERALS = {"true": "True", "false": "False", "null": "None", "None": "None", "True": "True", "False": "False"}


def in_pythons_words(method: Callable[..., Any]) -> Callable[..., Any]:
    """Reword UserErrors of a method of a trainer or its arguments, unless the trainer has a recipe, as of `d2e train`.

    `d2e train` has checked arguments by then.
    """

    @functools.wraps(method)
    def reworded(trainer: Any, *args: Any, **options: Any) -> Any:
        try:
            return method(trainer, *args, **options)
        except UserError as error:
            if options.get("recipe") is not None or not getattr(getattr(trainer, "record", None), "derives", True):
                raise
            remedy = error.remedy and _of_python(error.remedy)
            raise type(error)(_of_python(error.message), remedy) from error.__cause__

    return reworded


def _of_python(text: str) -> str:
    for theirs, ours in _OPTIONS.items():
        text = text.replace(theirs, ours)
    text = re.sub(r"\b((?:train|d2e|data|model|eval)\.\w+)(?:=([A-Za-z]\w+)\b(?!:))?", _argument, text)
    return re.sub(r"'(\d+)' of 'rows'", r"row \1", text)


def _argument(found: re.Match[str]) -> str:
    key, value = found.groups()
    if key not in _KEYS:
        return found[0]
    return _KEYS[key] if value is None else f"{_KEYS[key]}={_LITERALS.get(value, repr(value))}"
