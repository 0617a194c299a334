"""A job's prompts as data (a task; by format a note and a template for the sample), and the verdict in a reply."""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from d2e_sft.data.prompts import render_option
from d2e_sft.data.sample import Format
from d2e_sft.judge.judge import Judge, JudgePrompt
from d2e_sft.util.errors import UserError, describe_validation_error, did_you_mean
from d2e_sft.util.files import load_package_yaml, load_yaml

_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_MARKDOWN = re.compile(r"[*_`#]")
JOBS = ("quality", "refine", "sentences", "error_pattern", "free_answer")  # whose wording can be the user's own


class FormatTemplate(BaseModel):
    """The part of a prompt that depends on the format: a note below the task, and the sample with placeholders."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    note: str = ""
    sample: str


class JobTemplates(BaseModel):
    """The wording of one job.

    Attributes:
        task: Says what to do and how the reply must end; first part of the system message.
        reminder: Repeats the required form below a prompt whose first reply did not have it.
        endings: Words in a reply's last line → the closing line that they stand for, such as `Verdict: supported`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    task: str
    reminder: str
    formats: dict[Format, FormatTemplate]
    endings: dict[str, str] = Field(default_factory=dict)

    def prompt(self, sample: Any, kind: str, answers: Sequence[str], **more: str) -> JudgePrompt:
        """Return the prompt about a sample or prediction; braces in its texts are not placeholders.

        Args:
            sample: An `EventSample`, or an object with the same context, question, options, format, dataset and id.
            kind: The kind of object, for the label.
            answers: The correct answers; with options, those that are options.
            more: Fields besides `context`, `question`, `options` and `answer`.
        """
        options = [(option, render_option(place, option)) for place, option in enumerate(sample.options)]
        fields = {
            "context": sample.context,
            "question": sample.question,
            "options": "\n".join(line for _, line in options),
            "answer": "\n".join([line for option, line in options if option in answers] if options else answers),
            **more,
        }
        if (template := self.formats.get(sample.format)) is None:
            raise UserError(
                f"the judge's prompts have no format {sample.format}", "add it to the file of --judge-prompts"
            )
        if unknown := set(_PLACEHOLDER.findall(template.sample)) - fields.keys():
            known = ", ".join(f"{{{name}}}" for name in fields)
            raise UserError(f"the judge's prompts: got {{{min(unknown)}}}; expected some of {known}", "mend the file")
        user = _PLACEHOLDER.sub(lambda match: fields[match[1]], template.sample)
        label = f"{kind} {sample.id!r} of {sample.dataset!r}"
        return JudgePrompt(system=f"{self.task}\n\n{template.note}".strip(), user=user, label=label)

    def closed(self, reply: str) -> str:
        """Return a reply with the closing line that its last line stands for; as it is if none or several fit."""
        above, last = _split(reply)
        text = " ".join(last.casefold().split())
        lines = {line for words, line in self.endings.items() if " ".join(words.casefold().split()) in text}
        return f"{above}\n{lines.pop()}" if len(lines) == 1 else reply


def templates_of(judge: Judge | None, path: Path, job: str) -> JobTemplates:
    """Return the wording of a judge's job, as `load_templates`; `path` is the package's."""
    return load_templates(path, job, None if judge is None else judge.options.prompts)


@cache
def load_templates(path: Path, job: str, user_file: Path | None = None) -> JobTemplates:
    """Return the wording of a job: in the YAML file `user_file` if that has the job, else in one of this package.

    UserError if the user's file is damaged or has other jobs.
    """
    jobs = {} if user_file is None else _read_own(user_file)
    return jobs.get(job) or JobTemplates.model_validate(load_package_yaml(path)[job])


def _read_own(path: Path) -> dict[str, JobTemplates]:
    try:
        content = load_yaml(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or not content:
            raise ValueError("expected jobs")
        if unknown := [job for job in content if job not in JOBS]:
            hint = did_you_mean(str(unknown[0]), JOBS)
            raise UserError(f"--judge-prompts {path}: got {unknown[0]!r}; expected some of {', '.join(JOBS)}.{hint}")
        return {job: JobTemplates.model_validate(wording) for job, wording in content.items()}
    except ValidationError as error:
        raise UserError(f"--judge-prompts {path}: {describe_validation_error(error)}") from None
    except (OSError, yaml.YAMLError, ValueError) as error:
        raise UserError(f"--judge-prompts {path}: not a YAML file of prompts ({error})") from None


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
