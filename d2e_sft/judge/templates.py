"""A job's prompts as data (a task; by format a note and a template for the sample), and the verdict in a reply."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from d2e_sft.data.prompts import render_option
from d2e_sft.data.sample import Format
from d2e_sft.judge.judge import JudgePrompt
from d2e_sft.util.files import load_package_yaml

_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_MARKDOWN = re.compile(r"[*_`#]")


class FormatTemplate(BaseModel):
    """The part of a prompt that depends on the format: a note below the task, and the sample with placeholders."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    note: str
    sample: str


class JobTemplates(BaseModel):
    """The wording of one job.

    Attributes:
        task: Says what to do and how the reply must end; first part of the system message.
        reminder: Repeats the required form below a prompt whose first reply did not have it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    task: str
    reminder: str
    formats: dict[Format, FormatTemplate]

    def prompt(self, asked: Any, what: str, answers: Sequence[str], **more: str) -> JudgePrompt:
        """Return the prompt about a sample or prediction; braces in its texts are not placeholders.

        Args:
            asked: An `EventSample`, or an object with the same context, question, options, format, dataset and id.
            what: The kind of object, for the label.
            answers: The correct answers; with options, those that are options.
            more: Fields besides `context`, `question`, `options` and `answer`.
        """
        options = [(option, render_option(place, option)) for place, option in enumerate(asked.options)]
        fields = {
            "context": asked.context,
            "question": asked.question,
            "options": "\n".join(line for _, line in options),
            "answer": "\n".join([line for option, line in options if option in answers] if options else answers),
            **more,
        }
        template = self.formats[asked.format]
        user = _PLACEHOLDER.sub(lambda match: fields[match[1]], template.sample)
        label = f"{what} {asked.id!r} of {asked.dataset!r}"
        return JudgePrompt(system=f"{self.task}\n\n{template.note}", user=user, label=label)


@cache
def load_templates(path: Path, job: str) -> JobTemplates:
    """Return the wording of a job in a YAML file of this package."""
    return JobTemplates.model_validate(load_package_yaml(path)[job])


def closing_value(reply: str, name: str) -> str | None:
    """Return the value after `NAME:` on the last line of a reply; None if that line has another form.

    Letter case, Markdown marks and a full stop at the end are ignored. A verdict within the reasoning does not count.
    """
    last = _split(reply)[1]
    match = re.fullmatch(rf"{re.escape(name)}\s*:\s*(.*?)\s*\.?", last, flags=re.IGNORECASE)
    return " ".join(match[1].casefold().split()) if match else None


def without_closing(reply: str) -> str:
    """Return the reasoning above the closing line."""
    return _split(reply)[0]


def _split(reply: str) -> tuple[str, str]:
    """Return the text above the last line that is not blank, and that line without Markdown marks."""
    lines = reply.splitlines()
    for i in range(len(lines) - 1, -1, -1):
        if text := _MARKDOWN.sub("", lines[i]).strip():
            return "\n".join(lines[:i]).strip(), text
    return "", ""
