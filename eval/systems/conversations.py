"""What conversations with a model are made of: wording from YAML files, messages, and dialogues asked turn by turn."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from d2e_sft.data.chat_template import Continuation, Messages
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import EventSample
from d2e_sft.util.files import load_yaml
from eval.run.task import Conversation
from eval.score.extract import Extraction, extract_answer
from eval.systems.asker import Asker

Key = TypeVar("Key")


@cache
def wording(name: str) -> Any:
    """Return the content of `eval/systems/NAME.yaml`."""
    return load_yaml((Path(__file__).parent / f"{name}.yaml").read_text(encoding="utf-8"))


def system(text: str) -> dict[str, str]:
    """Return a system message."""
    return {"role": "system", "content": text}


def user(text: str) -> dict[str, str]:
    """Return a user's message."""
    return {"role": "user", "content": text if text.strip() else "…"}


def assistant(text: str) -> dict[str, str]:
    """Return a model's message; an empty one becomes `…`, since endpoints refuse empty messages."""
    return {"role": "assistant", "content": text if text.strip() else "…"}


def turns(*texts: str) -> Messages:
    """Return messages of user and assistant in turn."""
    return [(assistant if place % 2 else user)(text) for place, text in enumerate(texts)]


def exchanges(pairs: Iterable[tuple[str, str]]) -> Messages:
    """Return messages of questions, each with its answer."""
    return turns(*chain.from_iterable(pairs))


def ask_as_trained(
    asker: Asker,
    samples: Sequence[EventSample],
    *,
    group: Callable[[EventSample], Hashable] = lambda sample: "",
    **options: Any,
) -> list[Extraction]:
    """Ask samples in the words of `d2e train`, in one pass, and return what is read in each reply.

    The wording is that of the model's training. Samples of a `group` share a prefix; `options` are those of
    `Asker.ask`.
    """
    prompts = load_prompt_set(asker.config.prompt_set, asker.config.form)
    chats = []
    for one in samples:
        original, imagined = prompts.messages(one, "original"), prompts.messages(one, "imagined")
        chats.append(Conversation(one.dataset, one.id, original, imagined, group=group(one)))
    replies = asker.ask("answers", chats, style=Continuation(cue=None, stops=prompts.stops), **options)
    return [
        extract_answer(reply, fmt=fmt, options=one.options, marker=prompts.marker(fmt), given=prompts.given(fmt))
        for one, reply in zip(samples, replies, strict=True)
        if (fmt := one.format)
    ]


def ask_by_turns(
    asker: Asker,
    pass_name: str,
    counts: Mapping[Key, int],
    conversation: Callable[[Key, Sequence[str]], Conversation],
    *,
    read: Callable[[str], str] = str.strip,
    **options: Any,
) -> dict[Key, list[str]]:
    """Hold several dialogues, one pass per turn over all that are not finished, and return their replies.

    Args:
        pass_name: Format string for the number of the turn, counted from 1.
        counts: Number of turns of each dialogue.
        conversation: Returns the next question of a dialogue from its replies so far.
        read: Extracts the reply from each output; `options` are those of `Asker.ask`.
    """
    replies: dict[Key, list[str]] = {key: [] for key in counts}
    for turn in range(max(counts.values(), default=0)):
        going = [key for key, count in counts.items() if turn < count]
        asked = [conversation(key, replies[key]) for key in going]
        outputs = asker.ask(pass_name.format(turn + 1), asked, **options)
        for key, output in zip(going, outputs, strict=True):
            replies[key].append(read(output))
    return replies
