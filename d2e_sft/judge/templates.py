"""A job's prompts as data, and the verdict in a reply to one.

A job is one task, and for each format a note and the form in which a sample is shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from d2e_sft.data.prompts import render_option
from d2e_sft.data.sample import Format
from d2e_sft.judge.messages import Prompt
from d2e_sft.util.files import load_yaml

_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_MARKDOWN = re.compile(r"[*_`#]")


class FormatTemplate(BaseModel):
    """What is special about a format: a note below the task, and the sample's fields with placeholders."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    note: str
    sample: str


class JobTemplates(BaseModel):
    """The wording of one job.

    Attributes:
        task: what is to be done and how the reply must end; opens the system message.
        reminder: repeats that form below a prompt whose first reply did not have it.
        formats: the four formats.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    task: str
    reminder: str
    formats: dict[Format, FormatTemplate]

    def prompt(self, fmt: Format, fields: Mapping[str, str], label: str) -> Prompt:
        """The prompt about one sample; a brace in a field is text, never a placeholder.

        Raises:
            KeyError: the template wants a field that is not given.
        """
        template = self.formats[fmt]
        user = _PLACEHOLDER.sub(lambda match: fields[match[1]], template.sample)
        return Prompt(system=f"{self.task}\n\n{template.note}", user=user, label=label)


def load_templates(path: Path) -> dict[str, JobTemplates]:
    """The jobs in a YAML file, by name."""
    content = load_yaml(path.read_text(encoding="utf-8"))
    return {job: JobTemplates.model_validate(templates) for job, templates in content.items()}


def render_options(options: Sequence[str]) -> str:
    """The options with their letters, one a line."""
    return "\n".join(render_option(i, option) for i, option in enumerate(options))


def render_answers(options: Sequence[str], answers: Sequence[str]) -> str:
    """The answers, one a line; those that are options with the letters of these."""
    if not options:
        return "\n".join(answers)
    return "\n".join(render_option(i, option) for i, option in enumerate(options) if option in answers)


def closing_value(reply: str, name: str) -> str | None:
    """What stands behind `NAME:` on the last line of a reply, where alone a verdict is looked for; None without one.

    Upper and lower case, marks of Markdown and a full stop at the end make no difference. Nothing else is forgiven: a
    verdict somewhere in the reasoning is not a verdict.
    """
    last = _split(reply)[1]
    found = re.fullmatch(rf"{re.escape(name)}\s*:\s*(.*?)\s*\.?", last, flags=re.IGNORECASE)
    return " ".join(found[1].casefold().split()) if found else None


def without_closing(reply: str) -> str:
    """The reasoning above the closing line."""
    return _split(reply)[0]


def _split(reply: str) -> tuple[str, str]:
    """What stands above the last line that says something, and that line without marks."""
    lines = reply.splitlines()
    for i in range(len(lines) - 1, -1, -1):
        if text := _MARKDOWN.sub("", lines[i]).strip():
            return "\n".join(lines[:i]).strip(), text
    return "", ""
