"""Asking a model what a benchmark wants to know: prompts as turns, and passes whose answers are kept on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from d2e_sft.data.chat_template import CUED, Continuation, Messages
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import EventSample
from d2e_sft.util.files import load_package_yaml
from eval.run.journal import PassFiles
from eval.run.options import EvalConfig
from eval.run.passes import EvaluatedModel, run_pass
from eval.run.task import Answer, Task, TaskItem
from eval.score.extract import Extraction, extract_answer
from eval.score.predictions import ScoredOption
from eval.score.scoring import Normalise, likeliest

Key = TypeVar("Key")


_PROMPTS = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
    extensions=["jinja2.ext.do"],
)


@cache
def wording(name: str) -> Any:
    """Return the content of `eval/systems/NAME.yaml`; its texts may be Jinja (`filled`)."""
    return load_package_yaml(Path(__file__).parent / f"{name}.yaml")


_template = cache(_PROMPTS.from_string)


def filled(text: str, **values: Any) -> str:
    """Return a text of the wording with its Jinja expressions filled in; a line end at the end is removed."""
    return _template(text).render(hidden=values.pop("hidden", False), **values).removesuffix("\n")


def messages(name: str, **values: Any) -> Messages:
    """Return the conversation that `eval/systems/NAME.jinja` makes; `{% call user() %}…{% endcall %}` is a turn.

    `words` in it is the content of the YAML file of the same name, if there is one.
    """
    turns: Messages = []

    def turn(say: Callable[[str], dict[str, str]]) -> Callable[..., str]:
        def add(caller: Callable[[], str]) -> str:
            turns.append(say(caller().removesuffix("\n")))
            return ""

        return add

    words = wording(name) if (Path(__file__).parent / f"{name}.yaml").is_file() else {}
    roles = {"system": turn(system), "user": turn(user), "assistant": turn(assistant)}
    _PROMPTS.get_template(f"{name}.jinja").render(words=words, **roles, **values)
    return turns


def macros(name: str, **values: Any) -> dict[str, Callable[..., str]]:
    """Return the macros of `eval/systems/NAME.jinja` by name; a line end at the end of their texts is removed."""
    module = _PROMPTS.get_template(f"{name}.jinja").make_module(values)

    def of(macro: Callable[..., str]) -> Callable[..., str]:
        return lambda *args: macro(*args).removesuffix("\n")

    return {key: of(macro) for key, macro in vars(module).items() if callable(macro)}


def conversation(dataset: str, id_: str, prompt: str, *, group: Hashable = "", **values: Any) -> TaskItem:
    """Return the conversation of a template in both views; in the imagined one `hidden` is true."""
    original, imagined = (messages(prompt, hidden=hidden, **values) for hidden in (False, True))
    return TaskItem(dataset, id_, original, imagined, group=group)


def system(text: str) -> dict[str, str]:
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text if text.strip() else "…"}


def assistant(text: str) -> dict[str, str]:
    """Return a model's message; an empty one becomes `…`, since endpoints refuse empty messages."""
    return {"role": "assistant", "content": text if text.strip() else "…"}


def exchanges(pairs: Iterable[tuple[str, str]]) -> Messages:
    return [message for question, answer in pairs for message in (user(question), assistant(answer))]


@dataclass
class Asker:
    """A model that answers conversations, pass after pass; α subtracts what the imagined conversation says.

    A pass writes `FOLDER/PASS.jsonl` (dataset, id and output of each conversation) and `PASS.decoding.json`. It is
    resumed after a kill, and answers of other prompts, models or options are never mixed. `records` say what the
    passes so far were decoded with.
    """

    evaluated: EvaluatedModel
    folder: Path
    records: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def model(self) -> str:
        return self.evaluated.model

    @property
    def config(self) -> EvalConfig:
        return self.evaluated.config

    def ask(
        self,
        name: str,
        conversations: Sequence[TaskItem],
        *,
        max_new_tokens: int | None = None,
        style: Continuation = CUED,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> list[str]:
        """Return the answer to each conversation, in order; UserError if a prompt is too long, or the engine fails.

        Args:
            name: of the pass, which names its files.
            max_new_tokens: limit if `--max-new-tokens` is not given; None is the general default.
            style: how the conversations become one text, in other forms than chat.
            temperature: 0 is greedy; `seed` is for the draws.
        """
        limit = self.config.options.max_new_tokens or max_new_tokens or self.config.decoding.max_new_tokens
        decoding = replace(self.config.decoding, max_new_tokens=limit, temperature=temperature, seed=seed)
        if self.config.form == "completion":
            decoding = replace(decoding, stop_strings=style.stops)
        return self._run(SystemTask(name=name, conversations=conversations, decoding=decoding), style)

    def choose(self, name: str, conversations: Sequence[TaskItem], style: Continuation = CUED) -> list[str]:
        """Return the likeliest option of each conversation, in order, by `--normalise`."""
        normalise, decoding = self.config.options.normalise, self.config.decoding
        task = SystemTask(
            name=name, conversations=conversations, decoding=decoding, likelihood=True, normalise=normalise
        )
        return self._run(task, style)

    def _run(self, task: SystemTask, style: Continuation) -> list[str]:
        options, form = self.config.options, self.config.form
        task = replace(
            task,
            conversations=[chat.shaped(form, style) for chat in task.conversations],
            without_context=options.without_context,
            as_text=form == "completion",
        )
        assert len(set(task.keys)) == len(task.keys), "names of their own"
        if not task.keys:
            return []
        limit = self.config.max_samples
        chosen = "all" if limit is None else f"--max-samples {limit} --seed {options.seed}"
        # Also how the prompts were chosen, because another subset may be the same prompts.
        facts = {"prompts": f"sha256 {_digest(task)}", "asked": f"{len(task.keys):,} prompts ({chosen})"}
        finished = run_pass(replace(task, about=facts), PassFiles(self.folder, task.name), self.evaluated)
        self.records[task.name] = finished.record
        return [task.scored(answer)["output"] for answer in finished.answers]


@dataclass(frozen=True, kw_only=True)
class SystemTask(Task):
    """Conversations of a system; `normalise` is the length by which options are compared."""

    normalise: Normalise = "none"

    def scored(self, answer: Answer) -> dict[str, Any]:
        """Return the output, which is the likeliest option if options were scored, and their likelihoods."""
        if answer.scores is None:
            return {"output": answer.output}
        options = [
            ScoredOption(option=option, logprob=logprob, tokens=tokens, characters=len(option))
            for option, (logprob, tokens) in zip(self.conversations[answer.index].options, answer.scores, strict=True)
        ]
        best = options[likeliest(options, self.normalise)].option
        return {"output": best, "likelihoods": [option.model_dump() for option in options]}

    def line(self, answer: Answer) -> str:
        chat = self.conversations[answer.index]
        return json.dumps({"dataset": chat.dataset, "id": chat.id, **self.scored(answer)}, ensure_ascii=False)


def _digest(task: Task) -> str:
    """Return the SHA-256 of the prompts, including the imagined view if it is decoded."""
    prompts = [
        (
            *(chat.dataset, chat.id, messages),
            chat.imagined if task.decoding.needs_imagined else None,
            *([chat.options] if chat.options else []),
        )
        for chat, messages in zip(task.conversations, task.messages(), strict=True)
    ]
    return hashlib.sha256(json.dumps(prompts).encode()).hexdigest()


def ask_as_trained(
    asker: Asker,
    samples: Sequence[EventSample],
    *,
    group: Callable[[EventSample], Hashable] = lambda sample: "",
    **options: Any,
) -> list[Extraction]:
    """Ask samples in the words of the model's training, in one pass, and return what is read in each reply."""
    prompts = load_prompt_set(asker.config.prompt_set, asker.config.form)
    chats = []
    for sample in samples:
        original, imagined = prompts.messages(sample, "original"), prompts.messages(sample, "imagined")
        chats.append(TaskItem(sample.dataset, sample.id, original, imagined, group=group(sample)))
    replies = asker.ask("answers", chats, style=Continuation(cue=None, stops=prompts.stops), **options)
    return [
        extract_answer(reply, fmt=fmt, options=sample.options, marker=prompts.marker(fmt), given=prompts.given(fmt))
        for sample, reply in zip(samples, replies, strict=True)
        if (fmt := sample.format)
    ]


def ask_by_turns(
    asker: Asker,
    pass_name: str,
    counts: Mapping[Key, int],
    conversation: Callable[[Key, Sequence[str]], TaskItem],
    *,
    read: Callable[[str], str] = str.strip,
    **options: Any,
) -> dict[Key, list[str]]:
    """Hold several dialogues, one pass per turn over all that are not finished, and return their replies.

    Args:
        pass_name: Format string for the number of the turn, counted from 1.
        counts: Number of turns of each dialogue.
        conversation: Returns the next question of a dialogue from its replies so far.
        options: Those of `Asker.ask`.
    """
    replies: dict[Key, list[str]] = {key: [] for key in counts}
    for turn in range(max(counts.values(), default=0)):
        keys = [key for key, count in counts.items() if turn < count]
        chats = [conversation(key, replies[key]) for key in keys]
        outputs = asker.ask(pass_name.format(turn + 1), chats, **options)
        for key, output in zip(keys, outputs, strict=True):
            replies[key].append(read(output))
    return replies
