"""Writes the tables of docs/reference/cards.md: `python docs/cards_tables.py`, about three minutes on one core.

Each cell is what `d2e train RECIPE --dry-run --like MODEL --gpu CARD` says of made-up rows.
"""

import math
import random
import re
import tempfile
from pathlib import Path

from d2e_sft.config.recipe import load_recipe
from d2e_sft.data.sample import EventSample, write_samples
from d2e_sft.model.shapes import SHAPES
from d2e_sft.train.dry_run.cards import CARDS, Where
from d2e_sft.train.dry_run.fit import LAUNCHERS, Fit, Load, fits_on, utilisation_of
from d2e_sft.train.dry_run.plan import Plan
from d2e_sft.train.dry_run.report import hours

PAGE = Path(__file__).parent / "reference" / "cards.md"
# Title of a table → the method and the cards that train together.
TABLES = {"All weights, four cards": ("d2e", 4), "An adapter, one card": ("d2e-lora", 1)}
SHOWN = ("a100-40", "a100-80", "h100", "l40s", "rtx4090")
ROWS, WORDS, STEPS = 64, 250, 469  # 469 steps of 64: three epochs of 10,000 rows


def rows(file: Path) -> None:
    """Write rows of one length: a context of 250 words, a refined one of 100, a question of 12, an answer of 5."""
    source = random.Random(0)

    def text(words: int) -> str:
        return " ".join(f"{source.choice('bdfgklmnprst')}{source.choice('aeiou')}rain" for _ in range(words))

    made = [
        EventSample(
            id=f"row-{i}", dataset="made-up", split="train", relation="temporal", format="qa", context=text(WORDS),
            refined_context=text(100), question=f"{text(12)}?", answers=[text(5)],
        )
        for i in range(ROWS)
    ]  # fmt: skip
    write_samples(made, file)


def fits(folder: Path, model: str, method: str, processes: int) -> dict[str, list[Fit]]:
    """Return the fits on each card."""
    (folder / "run.yaml").write_text(f"extends: recipes/methods/{method}.yaml\nmodel: {{name: unused}}\n", "utf-8")
    keys = (f"data.train={folder}/rows.jsonl", f"train.output_dir={folder}/run", f"train.max_steps={STEPS}")
    keys += ("train.per_device_train_batch_size=4", "train.gradient_checkpointing=true")
    plan = Plan(load_recipe(folder / "run.yaml", keys), Where(None, processes, like=model, gpu="h100"))
    load, share = Load.of(plan), utilisation_of(plan.model)
    return {name: fits_on(CARDS[name], load, LAUNCHERS, processes, share) for name in SHOWN}


def cell(found: list[Fit]) -> str:
    """Return the fastest launcher that fits, its memory and its time."""
    able = [(fit.times["in all"], fit) for fit in found if fit.fits and fit.times is not None]
    if not able:
        return f"no, {min(fit.memory.total for fit in found) / 2**30:.1f} GiB"
    seconds, fit = min(able, key=lambda pair: pair[0])
    launcher = f"{fit.launcher}, " if len(found) > 1 else ""
    return f"{launcher}{fit.memory.total / 2**30:.1f} GiB, {hours(60 * math.ceil(seconds / 60)).removesuffix(' 00 s')}"


def tables() -> str:
    """Return the tables as Markdown."""
    parts = []
    with tempfile.TemporaryDirectory() as folder:
        rows(Path(folder) / "rows.jsonl")
        for title, (method, processes) in TABLES.items():
            lines = [f"| {title} | {' | '.join(SHOWN)} |", f"|---{'|---' * len(SHOWN)}|"]
            for model in SHAPES:
                if not model.startswith("tiny"):
                    found = fits(Path(folder), model, method, processes)
                    lines.append(f"| {model} | {' | '.join(map(cell, found.values()))} |")
                    print(lines[-1], flush=True)
            parts.append("\n".join(lines))
    return "\n\n".join(parts)


if __name__ == "__main__":
    start, end = "<!-- python docs/cards_tables.py -->\n", "\n<!-- end -->"
    pattern, made = re.compile(re.escape(start) + ".*?" + re.escape(end), re.DOTALL), tables()
    PAGE.write_text(pattern.sub(lambda _: start + made + end, PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"written: {PAGE}")
