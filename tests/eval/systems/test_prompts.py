"""What every benchmark asks, as a snapshot: passes, their limits, and a prompt of each in both views."""

import dataclasses
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from eval.systems import load_benchmark
from eval.systems.benchmark import BenchmarkCall, parse_options
from eval.systems.crepe.benchmark import FAMILIES
from eval.systems.crepe.code import snake
from eval.systems.openpi2.clusters import ATTRIBUTE_INPUT, ENTITY_INPUT
from tests.eval.systems.cases import CASES, save_gold
from tests.eval.systems.crepe_procedures import GOLD
from tests.eval.systems.files import save
from tests.factories import ScriptedAsker
from tests.messages import messages_of

TO_CLUSTER = {"goal": "Fry", "steps": ["Heat the pan.", "Break the egg."]}
_ANSWER = 'event.precondition = ("the tea", "hot")  # more likely'
INPUTS = {
    ENTITY_INPUT: {"1": {**TO_CLUSTER, "entities_flattened": ["pan", "skillet", "the pan", "egg"]}},
    ATTRIBUTE_INPUT: {"1": {**TO_CLUSTER, "entity_attr_dict": {"pan | skillet": ["heat | warmth", "place"]}}},
    "dev_data_mini_annotated_entity.json": {"1": {"entities": [["pan", "the pan", "skillet"], ["egg"]]}},
    "dev_data_mini_annotated_attr.json": {"1": {"entity_attr_dict": {"pan | skillet": ["heat | warmth", "place"]}}},
    "states.json": {
        "3": {"1": [{"entity": "kettle", "attribute": "hot", "change": "more likely"}]},
        "5": {},
    },
}


def shown(asker: ScriptedAsker, form: str, at: int) -> str:
    """Passes with options, and the messages of one conversation, in the imagined view those that differ."""
    parts = []
    for name, chats in asker.passes:
        options = dict(asker.options[name])
        style = options.pop("style", None)
        chat = chats[min(at, len(chats) - 1)]
        if form != "chat" and style is not None:
            chat = dataclasses.replace(chat.shaped(form, style), id=chat.id)
        options |= {"options": chat.options} if chat.options else {}
        parts.append(f"== {name}: {', '.join(one.id for one in chats[:4])} ({len(chats)}) {options or ''}")
        pairs = zip(chat.messages, chat.imagined, strict=False)
        shared = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
        turns = [f"{turn['role']}: {turn['content']}" for turn in chat.messages]
        hidden = [f"imagined {turn['role']}: {turn['content']}" for turn in chat.imagined[shared:]]
        parts += turns if len(turns) < 7 else [*turns[:3], f"({len(turns) - 6} more)", *turns[-3:]]
        parts += hidden[-3:]
    return "\n".join(parts)


def asked(
    name: str, *given: str, reply: Any = lambda *_: "", form: str = "chat", at: int = 1
) -> Callable[[Path], str]:
    def call(tmp: Path) -> str:
        for case in CASES:
            save_gold(tmp, case)
        for file, content in INPUTS.items():
            save(tmp / "openpi2" / file, content)
        benchmark = load_benchmark(name)
        options = parse_options(benchmark.options, [text.replace("TMP", str(tmp)) for text in given], name)
        asker = ScriptedAsker(reply)
        asker.config = SimpleNamespace(engine="openai", form=form, prompt_set="default")  # type: ignore[assignment]
        benchmark.run(BenchmarkCall(tmp / name, options, 2, 0, form=form), asker)  # type: ignore[arg-type]
        return shown(asker, form, at)

    return call


def family(prompt: str, entities: str) -> Callable[[Path], str]:
    given = [f"prompt={prompt}", f"entities={entities}", "shots=1"]
    given += ["entities_file=TMP/openpi2/states.json"] if entities == "predicted" else []
    return asked("crepe", *given, reply=lambda *_: _ANSWER, at=0)


def tracked(name: str, chat: Any) -> str:
    """An answer to each pass of OpenPI2.0."""
    if name.startswith("schemata"):
        return "water (temperature, place)"
    if name.startswith(("complete", "entity-states")) or name == "crepe-states":
        return "- heat of kettle was cold before and hot after"
    if name.startswith("salience"):
        return "5: it boils."
    return "more likely" if name.startswith("crepe") else "cold before and hot after"


CREPE_FILE = "crepe_file=TMP/crepe/data_dev_v2.json"
CALLS: dict[str, Callable[[Path], str]] = {
    **{
        f"crepe {prompt} {entities}": family(prompt, entities)
        for prompt, kind in FAMILIES.items()
        for entities in kind.entities
    },
    **{
        f"boxes {' '.join(given)} {form}": asked("boxes", *given, form=form)
        for given in (("prompt=all_boxes",), ("prompt=one_box", "demonstrations=alternate"), ("demonstrations=none",))
        for form in ("chat", "completion")
    },
    "boxes trained": asked("boxes", "prompt=trained"),
    "wiqa own": asked("wiqa", "shots=1"),
    "wiqa without the paragraph": asked("wiqa", "shots=1", "paragraph=no"),
    "wiqa trained": asked("wiqa", "prompt=trained"),
    **{
        f"openpi2 {task} {form}": asked("openpi2", f"task={task}", reply=tracked, form=form, at=0)
        for task in ("schemata", "states", "complete")
        for form in ("chat", "completion")
    },
    "openpi2 salience": asked("openpi2", "task=salience", "temperature=0.7", reply=tracked, at=0),
    "openpi2 clusters": asked(
        "openpi2", "task=clusters", "attribute_form=concise", "repeats=1", "entity_runs=1", "attribute_runs=1"
    ),
    "openpi2 expansion": asked("openpi2", "task=expansion", "expansion_runs=1", at=3),
    "openpi2 crepe": asked("openpi2", "task=crepe", CREPE_FILE, reply=tracked, at=0),
    "openpi2 crepe_states": asked("openpi2", "task=crepe_states", CREPE_FILE, reply=tracked),
}

test_prompt = messages_of(__file__, CALLS)


def test_imagined_views_lack_what_is_read_and_replies_that_may_tell_of_it(tmp_path: Path) -> None:
    hidden = [step["step"] for procedure in GOLD.values() for block in procedure["steps"][1:] for step in block[:1]]
    for name, call in CALLS.items():
        (folder := tmp_path / re.sub(r"\W", "_", name)).mkdir()
        for line in re.findall(r"^imagined (.*?)(?=^\w+: |^== |\Z)", call(folder), re.MULTILINE | re.DOTALL):
            for text in (*hidden, "Heat water in the kettle", "Move the hat", "Rain falls on the hill"):
                assert text.strip(" .").lower() not in line.lower(), name
                assert snake(text) not in line, name
