"""Worlds to train and evaluate in, benchmark rows, run folders and scripted replies for the tests."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from d2e_sft.data.built import MANIFEST
from d2e_sft.data.sample import EventSample, write_samples
from d2e_sft.model.storage.seal import SEAL_FILE, seal
from d2e_sft.util.answers import exact_match, token_f1
from d2e_sft.util.files import read_results, sha256_of
from eval.score.predictions import DIGEST, Prediction, write_predictions
from eval.score.scores import score_predictions, write_scores
from tests.command import d2e
from tests.servers import LocalServer, QuietHandler
from tests.tiny import make_sample, make_samples, save_tiny_model

LABELS = ("positive", "negative")
QUICK = ("--max-new-tokens", 6)


# A folder to work in ------------------------------------------------------------------------------------------------


def make_world(
    folder: Path,
    *,
    train: int | Sequence[EventSample] = 8,
    bench: int | Sequence[EventSample] = 8,
    dev: Sequence[EventSample] = (),
    probe: Sequence[EventSample] = (),
    kinds: Mapping[str, str] | None = None,
    seed: int = 0,
) -> Path:
    """Save tiny models, training rows and a benchmark in `folder`, and return it.

    Args:
        train: rows of `train.jsonl`, or how many.
        bench: rows of `bench/test.parquet`, or how many. The benchmark has training rows too.
        kinds: model folder → kind of `tiny_model`; by default one Llama in `model`.
        seed: of the models' weights.
    """
    for name, kind in (kinds or {"model": "llama"}).items():
        save_tiny_model(folder / name, kind, seed=seed)
    write_samples(make_samples(train) if isinstance(train, int) else train, folder / "train.jsonl")
    for name, rows in (("dev", dev), ("probe", probe)):
        if rows:
            write_samples(rows, folder / f"{name}.jsonl")
    if bench:
        save_bench(folder / "bench", bench_rows(bench) if isinstance(bench, int) else bench, train_rows())
    return folder


def write_recipe(world: Path, run: Path, *overrides: str) -> Path:
    """Write `RUN.yaml`, a recipe of four short steps on the world's model and rows, and return its path.

    `overrides` are `section.key=value`, as on the command line; the value is YAML.
    """
    recipe: dict[str, dict[str, Any]] = {
        "model": {"name": str(world / "model")},
        "data": {"train": str(world / "train.jsonl"), "max_length": 1000},
        "train": {
            "output_dir": str(run),
            "max_steps": 4,
            "batch_size": 4,
            "per_device_train_batch_size": 2,
            "learning_rate": 3e-3,
            "logging_steps": 1,
            "bf16": False,
        },
    }
    for override in overrides:
        key, _, value = override.partition("=")
        section, _, name = key.partition(".")
        recipe.setdefault(section, {})[name] = yaml.safe_load(value)
    path = run.with_suffix(".yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return path


def log_history(run: Path) -> list[dict[str, Any]]:
    """Return the log of a run's `trainer_state.json`."""
    history: list[dict[str, Any]] = json.loads((run / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    return history


def losses(run: Path) -> list[float]:
    return [entry["loss"] for entry in log_history(run) if "loss" in entry]


# Benchmarks and what `d2e eval` writes about them -------------------------------------------------------------------


def bench_row(number: int, **changes: Any) -> EventSample:
    """Make one row of the test split; odd numbers are nli, even ones qa."""
    fields: dict[str, Any] = {
        "split": "test",
        "context": f"It rained {number} days. " + "Roads froze. " * (number % 5),
    }
    if number % 2:
        fields |= {"format": "nli", "answers": [LABELS[number // 2 % 2]]}
    return make_sample(number, **{**fields, **changes})


def bench_rows(count: int = 8) -> list[EventSample]:
    """Make rows of different lengths, half qa, half nli."""
    return [bench_row(number) for number in range(count)]


def train_rows(count: int = 12, **changes: Any) -> list[EventSample]:
    """Make rows of the train split, whose contexts are in no test row."""
    rows = []
    for number in range(count):
        row = bench_row(number, split="train", id=f"t{number}", context=f"Snow fell on street {number} at noon.")
        rows.append(row.model_copy(update=changes))
    return rows


def save_bench(
    folder: Path,
    tests: Sequence[EventSample],
    trains: Sequence[EventSample] = (),
    manifest: Mapping[str, Any] | None = None,
) -> Path:
    """Save rows like `d2e data build` does; with a manifest only if its content is given."""
    write_samples(tests, folder / "test.parquet")
    if trains:
        write_samples(trains, folder / "train.parquet")
    if manifest is not None:
        save_manifest(folder, **manifest)
    return folder


def save_manifest(folder: Path, **changes: Any) -> None:
    """Write the manifest of a folder's Parquet files, with other entries where `changes` names them."""
    outputs = {
        file.name: {"bytes": file.stat().st_size, "sha256": sha256_of(file)} for file in folder.glob("*.parquet")
    }
    content = {"project": "d2e-sft", "version": "0.1.0", "outputs": outputs, "datasets": {}, **changes}
    (folder / MANIFEST).write_text(json.dumps(content), encoding="utf-8")


def evaluation(world: Path, run: Path, *arguments: str | Path | float) -> list[Any]:
    """Return the words of a `d2e eval` on the world's model and benchmark with few tokens per answer."""
    return ["eval", world / "model", "--bench", world / "bench", "--out", run, *QUICK, *arguments]


def evaluate(world: Path, run: Path, *arguments: str | Path | float) -> int:
    return d2e(*evaluation(world, run, *arguments))


def predictions(run: Path, bench: str = "bench", stem: str = "predictions") -> list[dict[str, Any]]:
    """Return the rows of a run's `predictions.jsonl`, or of another JSONL file in the same folder."""
    text = (run / "eval" / bench / f"{stem}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def scores_of(run: Path, bench: str = "bench") -> dict[str, Any]:
    return read_results(dict[str, Any], run / "eval" / bench / "scores.json", "scores", "")


def without_the_clock(scores: dict[str, Any]) -> dict[str, Any]:
    """Leave out the scores' fields that may differ between machines."""
    return {key: value for key, value in scores.items() if key not in ("seconds", "timed", "environment")}


# Predictions and run folders without a model ------------------------------------------------------------------------


def prediction(number: int, right: bool, **changes: Any) -> Prediction:
    """Make an nli prediction whose gold label is positive."""
    answer = "positive" if right else "negative"
    fields: dict[str, Any] = {
        "id": f"s{number}",
        "dataset": "stories",
        "relation": "temporal",
        "format": "nli",
        "context": f"Context {number}: the kettle boiled and the tea was poured.",
        "question": f"Question {number}: the tea was poured after the kettle boiled.",
        "options": [],
        "gold": ["positive"],
        "output": f"The answer is: {answer}",
        "answer": [answer],
        "extraction": "strict",
        "exact_match": float(right),
        "f1": float(right),
    }
    return Prediction(**{**fields, **changes})


def choice(number: int, right: bool, **changes: Any) -> Prediction:
    """Make an scq prediction between a cup, which is right, and a spoon."""
    answer = "a cup" if right else "a spoon"
    fields: dict[str, Any] = {
        "dataset": "kitchen",
        "relation": "causal",
        "format": "scq",
        "options": ["a cup", "a spoon"],
        "gold": ["a cup"],
        "output": f"The correct option is: {answer}",
        "answer": [answer],
    }
    return prediction(number, right, **{**fields, **changes})


def story(
    number: int, subset: str, said: str, *, habit: str | Sequence[str] = "kitchen", **changes: Any
) -> Prediction:
    """Make a qa prediction of a tagged row: the key is in the garage; `habit` is the answer without the context."""
    fields: dict[str, Any] = {
        "dataset": "habit",
        "format": "qa",
        "context": f"Story {number}: Felix takes the key from the barn to the garage.",
        "question": f"Story {number}: where is the key now?",
        "gold": ["garage"],
        "output": f"The answer is: {said}",
        "answer": [said] if said else [],
        "extraction": "strict" if said else "none",
        "exact_match": exact_match(said, ["garage"]),
        "f1": token_f1(said, ["garage"]),
        "subset": subset,
        "habit": [habit] if isinstance(habit, str) else list(habit),
    }
    return prediction(number, False, **{**fields, **changes})


def reply(number: int, said: str, **changes: Any) -> Prediction:
    """Make a prediction of a conversation whose context mentions 30 days and a receipt."""
    fields: dict[str, Any] = {
        "dataset": "returns",
        "relation": "none",
        "format": "chat",
        "context": "Goods may be returned within 30 days. A receipt is needed.",
        "question": f"How long may I return my lamp number {number}?",
        "gold": ["Within 30 days."],
        "output": said,
        "answer": [said],
        "exact_match": exact_match(said, ["Within 30 days."]),
        "f1": token_f1(said, ["Within 30 days."]),
    }
    return prediction(number, False, **{**fields, **changes})


def write_recorded(predictions: Sequence[Prediction], path: Path, **fingerprint: Any) -> None:
    """Write predictions, and the record of their decoding."""
    write_predictions(predictions, path)
    record = {"fingerprint": fingerprint, DIGEST: sha256_of(path)}
    path.with_suffix(".decoding.json").write_text(json.dumps(record), encoding="utf-8")


def make_run(
    folder: Path,
    predictions: Sequence[Prediction],
    *,
    bench: str = "mini",
    recipe: str | None = None,
    history: list[dict[str, Any]] | None = None,
    **changes: Any,
) -> Path:
    """Write a run folder with scored predictions, and return it.

    Args:
        history: the log of its `trainer_state.json`.
        changes: fields of `scores.json`; `sha256` is that of the benchmark's file, `fingerprint` that of the decoding.
    """
    results = folder / "eval" / bench
    write_recorded(predictions, results / "predictions.jsonl", **changes.pop("fingerprint", {}))
    sha256 = changes.pop("sha256", "ab" * 32)
    scores = {
        **score_predictions(predictions).content(),
        "model": f"model of {folder.name}",
        "alpha": 0.5,
        "bench": {"name": bench, "file": f"data/{bench}/test.parquet", "sha256": sha256},
        "prompt_set": "default",
        "subset": None,
        "seconds": 12.5,
        "environment": {"torch": "2.9.0", "device": "cpu"},
        **changes,
    }
    write_scores(results, scores, ["predictions.jsonl"])
    if recipe is not None:
        (folder / "recipe.yaml").write_text(recipe, encoding="utf-8")
    if history is not None:
        (folder / "trainer_state.json").write_text(json.dumps({"log_history": history}), encoding="utf-8")
    return folder


def seal_run(run: Path) -> None:
    """Write the checksums of a run's folder anew, as training does."""
    seal(run, (path for path in run.iterdir() if path.is_file() and path.name not in (SEAL_FILE, "README.md")))


# Scripted replies ---------------------------------------------------------------------------------------------------


class ScriptedAsker:
    """Stands in for `eval.systems.asking.Asker`: `reply(pass name, conversation)` answers, and `asked` keeps all."""

    model = "scripted"
    config = SimpleNamespace(engine="openai", form="chat", prompt_set="default")

    def __init__(self, reply: Callable[[str, Any], str]) -> None:
        self.reply = reply
        self.asked: dict[str, list[Any]] = {}
        self.options: dict[str, dict[str, Any]] = {}
        self.records: dict[str, Any] = {}

    @property
    def passes(self) -> list[tuple[str, list[Any]]]:
        """Return the passes in order: name and conversations."""
        return list(self.asked.items())

    @property
    def sampling(self) -> dict[str, tuple[float, int]]:
        """Return temperature and seed of each pass."""
        return {name: (one.get("temperature", 0.0), one.get("seed", 0)) for name, one in self.options.items()}

    def ask(self, name: str, conversations: Sequence[Any], **options: Any) -> list[str]:
        """Answer every conversation of one pass."""
        assert name not in self.asked, "two passes have the same name"
        assert len({chat.id for chat in conversations}) == len(conversations)
        self.asked[name], self.options[name] = list(conversations), options
        return [self.reply(name, chat) for chat in conversations]

    def choose(self, name: str, conversations: Sequence[Any], style: Any = None) -> list[str]:
        """Choose the option that the reply names, in any case."""
        replies = self.ask(name, conversations, style=style)
        return [
            next(option for option in chat.options if option == text.lower())
            for chat, text in zip(conversations, replies, strict=True)
        ]


class ScriptedServer(LocalServer):
    """An HTTP server that answers JSON by `reply(path, request)`: the content, or a status and the content."""

    def __init__(self, reply: Callable[[str, dict[str, Any]], Any]) -> None:
        super().__init__(_ScriptedHandler)
        self.reply = reply
        self.requests: list[dict[str, Any]] = []


class _ScriptedHandler(QuietHandler):
    server: ScriptedServer
    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        self.server.requests.append({"path": self.path, **request})
        answer = self.server.reply(self.path, request)
        status, content = answer if isinstance(answer, tuple) else (200, answer)
        self.reply(status, json.dumps(content).encode(), {"Content-Type": "application/json"})


class Unpickled:
    """A call that is made when the object is unpickled."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call
