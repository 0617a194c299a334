"""A job's prompts as data: one task, and for each format a note and the form in which a sample is shown."""

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
