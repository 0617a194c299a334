"""WIQA: `d2e data wiqa-questions` writes questions of influence graphs, `d2e wiqa-baseline` trains its baselines."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from d2e_sft.config.options import Number, given_options
from d2e_sft.util.errors import UserError, did_you_mean
from d2e_sft.util.files import write_whole
from d2e_sft.util.table import Table
from d2e_sft.util.terminal import warn

_OF_TRAINING, _OF_ENCODERS = ("epochs", "learning_rate"), ("batch_size", "without_paragraph")


@click.command("wiqa-questions")
@click.option(
    "--graphs", type=click.Path(path_type=Path), required=True, help="Influence graphs: wiqa_influence_graphs.jsonl."
)
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="File to write the questions to, one per line."
)
@click.option(
    "--no-effect",
    type=click.IntRange(min=0),
    default=6,
    show_default=True,
    help="Questions without effect for each graph, on changes of other paragraphs.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the draws.")
@click.option(
    "--alignments",
    type=click.Path(path_type=Path),
    help="JSON of the sentences of X and Y by graph; adds explanations.",
)
@click.option(
    "--balanced", "balance", is_flag=True, help="Draw as many of each type and of each answer, as the paper does."
)
def wiqa_questions(graphs: Path, out: Path, no_effect: int, seed: int, alignments: Path | None, balance: bool) -> None:
    """Write the questions and answers of all paths with 1 to 3 hops through influence graphs.

    --balanced keeps a random part, so that types and answers are equally frequent.

    Example: d2e data wiqa-questions --graphs wiqa_influence_graphs.jsonl --out data/raw/wiqa/all.jsonl
    """
    from eval.systems.reading import json_lines
    from eval.systems.wiqa.gold import LABELS, TYPES
    from eval.systems.wiqa.graphs import balanced, grouped, questions_of, read_alignments, read_graphs

    graphs_by_id = read_graphs(graphs)
    aligned = read_alignments(alignments, graphs_by_id) if alignments is not None else None
    rows = list(questions_of(graphs_by_id, no_effect=no_effect, seed=seed, alignments=aligned))
    if not rows:
        raise UserError(
            f"{graphs}: its {len(graphs_by_id)} graphs have no edge between nodes with texts; nothing was written"
        )
    if balance and not (rows := balanced(rows, seed)):
        raise UserError(
            f"{graphs}: --balanced: some type or answer has no question, so nothing can be balanced",
            "drop it, or raise --no-effect",
        )
    write_whole(out, json_lines(rows))
    groups, explained = grouped(rows), sum("explanation" in row for row in rows)
    counts = [[name, *(len(groups.get((kind, label), ())) for label in LABELS)] for kind, name in TYPES.items()]
    click.echo(Table.of(["type", *LABELS], [[name, *map(str, cells)] for name, *cells in counts]).terminal() + "\n")
    click.echo(f"{len(rows):,} questions of {len(graphs_by_id):,} graphs ({explained:,} explained): {out}")


@click.command("wiqa-baseline")
@click.argument("model")
@click.option(
    "--train", type=click.Path(path_type=Path), metavar="FILE", help="Questions to train on, such as train.jsonl."
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=Path("data/raw/wiqa"),
    show_default=True,
    metavar="FILE|DIR",
    help="Questions to answer: a file, or a folder with test.jsonl.",
)
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="RUN", help="Run folder.")
@click.option("--without-paragraph", is_flag=True, help="Leave the paragraph out, in training and in the questions.")
@click.option("--epochs", type=Number(0, 1_000, min_open=True), default=3.0, show_default=True)
@click.option("--batch-size", type=click.IntRange(min=1), default=32, show_default=True, help="Questions in a step.")
@click.option("--learning-rate", type=Number(0, 1, min_open=True), default=2e-5, show_default=True)
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Seed of the training.")
def wiqa_baseline(
    model: str, *, train: Path | None, data: Path, out: Path, without_paragraph: bool, seed: int, **training: Any
) -> None:
    """Train MODEL on WIQA's questions, answer others with it, and score the answers as `d2e eval` does.

    MODEL is `adaboost` (on the words of cause and effect), or an encoder such as google-bert/bert-base-uncased: a Hub
    name or a folder. A trained encoder is kept in RUN; without --train, MODEL is such a RUN and only answers.

    \b
    Examples:
      d2e wiqa-baseline google-bert/bert-base-uncased --train train.jsonl --out runs/bert
      d2e wiqa-baseline adaboost --train train.jsonl --out runs/adaboost
      d2e wiqa-baseline runs/bert --data all.jsonl --out runs/bert-all
    """
    from dataclasses import replace

    from eval.score.scores import SCORES_FILE
    from eval.systems.labels import LabelAnswers
    from eval.systems.run import write_result
    from eval.systems.wiqa.baselines import WORDS, by_encoder, by_words
    from eval.systems.wiqa.benchmark import WIQA, WiqaOptions

    words = model == WORDS
    _check(model, train, out, words=words)
    options = WiqaOptions(paragraph="no" if without_paragraph else "yes")
    file = WIQA.gold_at(data, options, "--data")
    test = WIQA.read_gold(file, options)
    known = [] if train is None else WIQA.read_gold(train, options)
    folder = out / "eval" / "-".join(filter(None, (WIQA.name, options.variant)))
    if (folder / SCORES_FILE).exists():  # may be another model's
        raise UserError(f"{folder}: holds results already, which would be replaced", "name another --out")
    if both := len({question.id for question in known} & {question.id for question in test}):
        warn(f"{both:,} of the {len(test):,} questions of {file} are also in {train}: their answers were trained on")
    if words:
        labels = by_words(known, test, seed)
    else:
        labels = by_encoder(model, known, test, out, paragraph=not without_paragraph, seed=seed, **training)
    by_id = dict(zip((question.id for question in test), labels, strict=True))
    answers = LabelAnswers(by_id, WIQA.about(options.model_copy(update={"file": file.name})))
    result = WIQA.evaluate(test, answers, options, seed)
    result = replace(result, files=WIQA.files(test, answers))
    record = {"model": model, "train": None if train is None else str(train), "questions_trained": len(known)}
    write_result(folder, {"system": WIQA.name, **result.scores, **record, **training, "seed": seed}, result)
    click.echo(result.text)
    click.echo(f"scores, tables and predictions: {folder}")


def _check(model: str, train: Path | None, out: Path, *, words: bool) -> None:
    """Refuse options that have no effect, and a folder that holds another model."""
    flags = given_options(click.get_current_context())
    unused = [*(_OF_TRAINING if words or train is None else ()), *(_OF_ENCODERS if words else ())]
    for flag in (flags[name] for name in unused if name in flags):
        reason = "it is for encoders" if words else "nothing is trained without --train"
        raise UserError(f"{flag} with {model}: {reason}", "drop it")
    if not words and not Path(model).exists() and (hint := did_you_mean(model, ("adaboost",))):
        raise UserError(f"model {model!r}: no such baseline.{hint}", "or name an encoder: a Hub name or a folder")
    if words and train is None:
        raise UserError(f"{model}: needs questions to train on", "add --train TRAIN.jsonl")
    if words and find_spec("sklearn") is None:
        raise UserError(f"{model}: needs scikit-learn, which is not installed", "pip install 'd2e-sft[stats]'")
    if train is not None and (out / "config.json").exists():
        raise UserError(f"--out {out}: holds a model already, which would be replaced", "name another folder")
