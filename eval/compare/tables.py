"""Tables of a comparison, as columns that say which score they show and how.

For nli they show how often each label was predicted. A model that ignores the premise gives one label to nearly every
sample and is right on about half of them (PIPER, section 4.4). Accuracy does not show that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, get_args

from d2e_sft.data.sample import ENOUGH_ROWS, SUBSETS
from d2e_sft.util.errors import UserError
from d2e_sft.util.table import NONE, Table, percent
from eval.compare.compare import JUDGED, Block, Comparison, Score
from eval.compare.figures import (
    LABELS,
    Part,
    collapse_warning,
    corrected_p,
    gain,
    mean_of,
    p_value,
    share_bar,
    shares_in_percent,
    tested,
    with_interval,
    with_star,
)
from eval.compare.published import read_published
from eval.score.confiqa import MEASURES as MEASURES_OF_CONFIQA
from eval.score.confiqa import RATIO
from eval.score.faithfulness import BY_WORDS, REFUSALS
from eval.score.frame import ALL, AVERAGE, CELLS, GAP, GROUP
from eval.score.predictions import RIGHT
from eval.score.statistics import Difference

ABOUT_LABELS = "Predicted labels of nli, percent: positive / negative / no label (█ ░ ·)"
_CONTEXT = (
    "What the context is worth: the mean without it (decoded plainly, so do not compare runs with different α), what "
    "it adds in percentage points (paired; * where the corrected p is below 0.05), and the percentage of answers that "
    "stay the same"
)
ABOUT_WORDS = (
    "Faithfulness of free answers by words, percent. Contained: the answer contains an accepted one. Context "
    "recall: the accepted answer's words in the context that the answer has too. In context: the answer's words that "
    "the context has. Claim overlap: the words of each of its sentences that one sentence of the context has"
)
ABOUT_REFUSALS = (
    "Refusals, percent. Refused: of the rows whose context lacks the answer, those where the model says so. Refused "
    "wrongly, right: of the other rows"
)
_JUDGE = (
    "By a judge, percent of answers: the context supports everything in the answer; it says what the gold answer says"
)
_PAIRED = (
    "Paired difference to {}: percentage points with {}; p of {}, in brackets "
    "corrected for {} (Holm); * where the corrected p is below 0.05"
)
_ANSWERS = (
    "Answers on conflict rows. How often the answer is the habit; the memorisation ratio M_R (Zhou et al., all rows); "
    "the shares of outputs with the context's answer only, the habit only, both, neither"
)
_OWN_HABIT = (
    "Does the model have the habit? How often its answer to conflict rows without the context is the habit, the "
    "number of these rows, and its accuracy on them with the context"
)
ABOUT_CONFIQA = (
    "ConFiQA's own measures of its conflict rows, percent (Bi et al.). P_c: the output contains the context's answer, "
    "not the known one and no negation; P_o: it contains the known one; M_R = P_o / (P_c + P_o); In-Acc: it contains "
    "the context's answer; EM: the answer is the context's"
)
_MORE_ROWS = "More --max-samples, a larger test share"
_TEST, TEST_OF_MEASURES = "a sign-flip test", "approximate randomisation"
_KINDS = (
    f"By what the questions ask for: accuracy ({RIGHT}) in percent with {{}}; “Which company …?” asks for a company"
)


class Column(NamedTuple):
    """A column: its heading, the measure (on a subset) that it shows, and how it writes a score.

    Without a measure it shows that of the block's name.
    """

    heading: str
    measure: str
    show: Callable[[Score | None], str]
    subset: str = ""


_METRICS = {"mean": "mean", "EM": "exact_match", "F1": "f1", "set accuracy": "set_accuracy"}
_UNPARSED = Column("unparsed", "none", mean_of)
_OVERVIEW = [
    Column("mean", "mean", with_interval),
    Column("EM", "exact_match", mean_of),
    Column("F1", "f1", mean_of),
    Column("sets", "set_accuracy", mean_of),
    _UNPARSED,
    Column("Δ mean", "mean", gain),
    Column("p", "mean", tested(corrected_p)),
]


def changes_of(measures: Mapping[str, tuple[str, str]], p: Callable[[Difference | None], str]) -> list[Column]:
    """Return two columns for each measure (on a subset), given by its heading: the difference and its p-value."""
    return [
        column
        for heading, (measure, subset) in measures.items()
        for column in (Column(heading, measure, gain, subset), Column("p", measure, tested(p), subset))
    ]


_WORTH = [
    Column("without", "without", with_interval),
    Column("context adds", "without", gain),
    Column("same", "same", mean_of),
]
_HABITS = [
    Column("habit rate", "habit_rate", with_interval, "conflict"),
    Column("M_R", "memorisation_ratio", mean_of, "conflict"),
    *(Column(name.removesuffix("_only"), name, mean_of, "conflict") for name in CELLS[:2]),
    *(Column(name, name, mean_of, "conflict") for name in CELLS[2:]),
]
_OWN_HABITS = [
    Column("habit unread", "own habit", with_interval, "conflict"),
    Column("n", "on own habit", lambda score: "0" if score is None else f"{score.n:,}", "conflict"),
    Column("conflict of these", "on own habit", with_interval, "conflict"),
]


def table_of(
    labels: Sequence[str],
    blocks: Iterable[tuple[str, Block]],
    columns: Sequence[Column],
    caption: str,
    title: str = "samples",
    notes: Sequence[str] = (),
    more: Iterable[tuple[str, list[str]]] = (),
) -> Table:
    """Return a table with a line for each run in each block, given with its name, and `more` lines of blocks.

    Lines whose first cell shows no score, and columns that are empty everywhere, are left out.
    """
    lines = []
    for name, block in blocks:
        for label in labels:
            keys = [(label, column.measure or block.name[0], column.subset) for column in columns]
            cells = [column.show(block.score(*key)) for column, key in zip(columns, keys, strict=True)]
            if not {*cells} <= {"", NONE, "0"}:
                lines.append((name, [label, *cells]))
    lines += more
    shown = [place for place in range(len(columns)) if any(line[place + 1] not in ("", NONE) for _, line in lines)]
    header = ["run", *(columns[place].heading for place in shown)]
    kept = [(name, [line[0], *(line[place + 1] for place in shown)]) for name, line in lines]
    return Table.in_blocks(title, header, kept, caption, notes=notes)


def name_of(parts: Sequence[str]) -> str:
    """Return the name of a group: what it has of dataset, relation and format."""
    return ", ".join(part for part in (parts[:1] if {*parts} == {ALL} else parts) if part != "–")


def _sized(blocks: Iterable[Block]) -> list[tuple[str, Block]]:
    return [(f"{name_of(block.name)} ({block.sizes['']:,})", block) for block in blocks]


def comparison_tables(
    comparison: Comparison, *, groups: bool = True, detail: bool = False, part: Part | None = None
) -> list[Table]:
    """Return all tables that have a line, in the order of `tables_by_part`.

    `groups` adds scores by group; `detail` shows intervals and differences for every metric, with both p-values.
    `part` is the only one to show; UserError if the comparison lacks it.
    """
    if comparison.is_by_measures:
        if part is not None:
            raise UserError(f"--part {part}: {comparison.bench} has measures and no parts", "drop it")
        return with_lines([measure_table(comparison), seed_table(comparison)])
    by_part = tables_by_part(comparison, detail=detail)
    if part is not None and part not in by_part:
        refuse_small_subsets(comparison, part)
        parts = ", ".join(by_part)
        raise UserError(f"--part {part}: {comparison.bench} has none; expected {parts}", "name one of these")
    if part is not None:
        return by_part[part]
    shown = [table for name, tables in by_part.items() if groups or name != "groups" for table in tables]
    return with_lines([*shown, seed_table(comparison)])


def measure_table(comparison: Comparison) -> Table:
    """Return a block for each measure, a row for each result: score, difference to the first, and p."""
    first, *others = comparison.labels
    blocks = comparison.blocks("measures", "measure", "unit")
    units = " and ".join(dict.fromkeys(block.name[1] for block in blocks))
    caption = f"{comparison.bench}: percent with {comparison.intervals} over {units}"
    if others:
        caption += (
            f"; Δ to {first} in percentage points, paired; p of {comparison.test(TEST_OF_MEASURES)}, corrected "
            "(Holm): the first measure's for the results, the other measures' for results and measures; * below 0.05"
        )
    left_out = ", ".join(comparison.left_out)
    notes = [f"Left out, because not all results have them, from 0 to 1: {left_out}."] if left_out else []
    named = [(f"{block.name[0]} ({block.sizes['']:,})", block) for block in blocks]
    columns = [Column("score", "", with_interval), Column("Δ", "", gain), Column("p", "", tested(corrected_p))]
    return table_of(comparison.labels, named, columns, caption, "measure", notes)


def tables_by_part(comparison: Comparison, *, detail: bool = False) -> dict[Part, list[Table]]:
    """Return the tables of each part that has any; subsets come first if the benchmark is about them."""
    by_part: dict[Part, list[Table]] = {
        "subsets": subset_comparison_tables(comparison, detail=detail),
        "kinds": kind_tables(comparison),
        "groups": group_tables(comparison, detail=detail),
        "faithfulness": faithfulness_tables(comparison, detail=detail),
    }
    order: Sequence[Part] = ("groups", "faithfulness", "subsets", "kinds")
    order = get_args(Part) if comparison.is_about_subsets else order
    return {name: by_part[name] for name in order if by_part[name]}


def seed_table(comparison: Comparison) -> Table:
    """Return the scores of each seed that the verdicts are about; without rows for single runs."""
    lines = []
    for label in comparison.labels:
        for name, values in main_values(comparison, label).items():
            lines.append([label, name, *(percent(value) for value in values)])
    columns = ["run", "score", *(f"seed {seed}" for seed in comparison.seeds)]
    return Table.of(columns, lines if comparison.seeds else [], f"{comparison.bench}: percent, by seed", keys=2)


def main_values(comparison: Comparison, run: str) -> dict[str, list[float]]:
    """Return what the verdicts are about → its value for each seed: accuracy by subset, or the main score.

    Subsets that have few rows in some seeds are left out.
    """
    if comparison.by_seed is None:
        return {}
    df, (block, measure) = comparison.by_seed[comparison.by_seed.run == run], comparison.main
    if comparison.is_about_subsets and comparison.headline is not None:
        df = df[(df.part == "subsets") & (df.measure == "accuracy") & (df.dataset == comparison.headline.name[0])]
        values = {str(name): list(group["mean"]) for name, group in df.groupby("subset", sort=False)}
        return {name: means for name, means in values.items() if len(means) == len(comparison.seeds)}
    part, keys = ("measures", ["measure", "unit"]) if comparison.is_by_measures else ("groups", GROUP)
    df = df[(df.part == part) & (df[keys] == list(block.name)).all(axis=1) & (df.measure == measure)]
    return {measure: list(df["mean"])}


def group_tables(comparison: Comparison, *, detail: bool = False) -> list[Table]:
    """Return scores with differences to the first run, nli labels and what the context is worth."""
    labels, sized = comparison.labels, _sized(comparison.groups)
    scores = [_overview(comparison)]
    if detail:
        caption = (
            f"{comparison.bench}: percent with {comparison.intervals}; mean is that of EM and F1, and an average is "
            "that of its relation's rows"
        )
        columns = [*(Column(heading, measure, with_interval) for heading, measure in _METRICS.items()), _UNPARSED]
        gains = changes_of({f"Δ{heading}": (measure, "") for heading, measure in _METRICS.items()}, p_value)
        paired = _paired(comparison, "the number of rows")
        scores = [table_of(labels, sized, columns, caption), table_of(labels, sized, gains, paired)]
    context = _sized(comparison.blocks("context", *GROUP))
    return with_lines([*scores, label_table(comparison), table_of(labels, context, _WORTH, _CONTEXT)])


def _paired(comparison: Comparison, corrected_for: str) -> str:
    facts = comparison.intervals, comparison.test(_TEST)
    return _PAIRED.format(comparison.labels[0], *facts, corrected_for)


def with_lines(tables: Iterable[Table]) -> list[Table]:
    return [table for table in tables if len(table.frame)]


def _overview(comparison: Comparison) -> Table:
    first, *others = comparison.labels
    caption = f"{comparison.bench}: percent with {comparison.intervals}; mean is that of EM and F1"
    if others:
        caption += f"; Δ to {first} in percentage points, paired; p of {comparison.test(_TEST)}, corrected for the "
        caption += "rows (Holm), * below 0.05"
    return table_of(comparison.labels, _sized(comparison.groups), _OVERVIEW, caption)


def label_table(comparison: Comparison) -> Table:
    """Return predicted label shares next to the gold ones, with a warning where one label took over; nli rows only."""
    lines, warnings = [], []
    for name, block in _sized(comparison.groups):
        gold = shares_of(block, comparison.labels[0], "gold")
        for label, shares in [("gold", gold), *((run, shares_of(block, run, "says")) for run in comparison.labels)]:
            if shares:
                lines.append((name, [label, shares_in_percent(shares), share_bar(shares)]))
                title = f"{label}, {block.name[0]} ({block.name[1]})"
                warnings.append(collapse_warning(title, shares, gold, block.sizes[""]))
    return Table.in_blocks("samples", ["run", "labels", ""], lines, ABOUT_LABELS, notes=[*filter(None, warnings)])


def shares_of(block: Block, run: str, kind: str) -> dict[str, float]:
    """Return the share of each label that a run `says`, or that is `gold`; empty for other formats than nli."""
    scores = {label: block.score(run, f"{kind} {label}") for label in LABELS}
    return {label: score.mean for label, score in scores.items() if score is not None}


def faithfulness_tables(comparison: Comparison, *, words: bool = True, detail: bool = False) -> list[Table]:
    """Return how far free answers keep to their contexts: by `words`, and by a judge's verdicts if there are any.

    `detail` shows the differences in a table of their own.
    """
    first, *others = comparison.labels
    star = f"; * differs from {first} (corrected p below 0.05)" * bool(others)
    blocks, tables = comparison.blocks("faithfulness", "dataset"), []
    judged = ({name: name for name in JUDGED}, _JUDGE)
    for measures, caption in [(BY_WORDS, ABOUT_WORDS), (REFUSALS, ABOUT_REFUSALS), judged] if words else [judged]:
        named = []
        for block in blocks:
            refusal = block.score(first, "refusal")
            if refusal or measures is not REFUSALS:
                lacking = f", {refusal.n:,} lack the answer" if refusal and measures is REFUSALS else ""
                named.append((f"{block.name[0]} ({block.sizes['']:,}{lacking})", block))
        scores = [Column(heading, measure, with_star) for measure, heading in measures.items()]
        gains = changes_of({f"Δ {heading}": (measure, "") for measure, heading in measures.items()}, p_value)
        tables.append(table_of(comparison.labels, named, scores, caption + star))
        if detail:
            tables.append(table_of(comparison.labels, named, gains, _paired(comparison, "runs and measures")))
    return with_lines(tables)


def subset_comparison_tables(comparison: Comparison, *, detail: bool = False) -> list[Table]:
    """Return accuracies, gap, answers on conflict rows, own habit, and differences; `detail` shows both p-values."""
    blocks = [(block.name[0], block) for block in comparison.subsets]
    names = [name for name in SUBSETS if any(name in block.sizes for _, block in blocks)]
    sizes = (f"{name} {' + '.join(f'{n:,} {subset}' for subset, n in block.sizes.items())}" for name, block in blocks)
    accuracies = [Column(name, "accuracy", with_interval, name) for name in (*names, GAP)]
    has_gap = any(block.score(comparison.labels[0], "accuracy", GAP) for _, block in blocks)
    caption = (
        f"By subset ({'; '.join(sizes)}): accuracy ({RIGHT}) in percent with {comparison.intervals}"
        f"{'; gap = aligned − conflict' * has_gap}.{untagged_note(comparison.untagged)}{_tagged_by(comparison)}"
    )
    changes = changes_of({f"Δ {name}": ("accuracy", name) for name in names}, p_value if detail else corrected_p)
    paired = (
        f"Paired difference to {comparison.labels[0]} in percentage points with {comparison.intervals}; p of "
        f"{comparison.test(_TEST)}, {'in brackets ' * detail}corrected for a dataset's runs and subsets (Holm); * "
        "where that is below 0.05"
    )
    kinds = [(accuracies, caption), (_HABITS, _ANSWERS), (_OWN_HABITS, _OWN_HABIT), (changes, paired)]
    title = "dataset" if len(blocks) > 1 else ""
    tables = [table_of(comparison.labels, blocks, columns, text, title) for columns, text in kinds]
    return with_lines([*tables, confiqa_table(comparison)])


def confiqa_table(comparison: Comparison) -> Table:
    """Return ConFiQA's measures by part, and with the average of all parts the published values of small models."""
    blocks, first = _sized(comparison.blocks("confiqa", "dataset")), comparison.labels[0]
    shown = {RATIO[-1]: mean_of}  # an average of ratios has no interval
    columns = [Column(name, measure, shown.get(measure, with_star)) for measure, name in MEASURES_OF_CONFIQA.items()]
    paper = read_published("confiqa")
    more = [
        (f"published by {paper.paper}", [row.name, *(words.get(column.heading, NONE) for column in columns)])
        for table in (paper.tables if any(block.name == (AVERAGE,) for _, block in blocks) else ())
        for row in table.rows
        for words in [dict(zip(table.columns, row.words, strict=True))]
    ]
    star = f"; * differs from {first} (corrected p below 0.05)" * (len(comparison.labels) > 1)
    return table_of(comparison.labels, blocks, columns, ABOUT_CONFIQA + star, "dataset", more=more)


def kind_tables(comparison: Comparison) -> list[Table]:
    """Return each run's accuracy by what the questions ask for, on all rows and on conflict rows."""
    named = []
    for block in comparison.blocks("kinds", "kind"):
        sizes = {subset: score.rows for (_, _, subset), score in block.scores.items()}
        conflict = f", {sizes['conflict']:,} conflict" if "conflict" in sizes else ""
        named.append((f"{block.name[0]} ({sizes[ALL]:,}{conflict})", block))
    columns = [Column("accuracy", "accuracy", with_star, ALL), Column("conflict", "accuracy", with_star, "conflict")]
    first, *others = comparison.labels
    caption = _KINDS.format(comparison.intervals) + f"; * differs from {first} (corrected p below 0.05)" * bool(others)
    return with_lines([table_of(comparison.labels, named, columns, caption, "question asks for")])


def small_note(comparison: Comparison) -> str:
    """Return the footnote on subsets that have too few rows to compare, or on what a seed lacks; empty without any."""
    return "".join(f"{sentence}. " for sentence in filter(None, _too_small(comparison))).rstrip()


def refuse_small_subsets(comparison: Comparison, part: Part) -> None:
    """Raise UserError if the part that is asked for lacks its rows because every subset has too few."""
    problem, remedy = _too_small(comparison)
    if part == "subsets" and problem:
        raise UserError(
            f"--part {part}: {comparison.bench} has none to compare. {problem}",
            remedy or f"{_MORE_ROWS} gives more rows",
        )


def _too_small(comparison: Comparison) -> tuple[str, str]:
    """Return what cannot be compared, with its reason, and what gives more rows."""
    if comparison.seeds and comparison.left_out:
        return f"Left out, because not all seeds have them: {', '.join(comparison.left_out)}", ""
    counts = [
        f"{dataset}, {subset}, {n} row{'s' * (n > 1)}, right: "
        + ", ".join(f"{label} {count}" for label, count in right.items())
        for (dataset, subset, n), right in (comparison.small_subsets or {}).items()
    ]
    lacking = {subset for _, subset, _ in comparison.small_subsets or {}} == {"unanswerable"}
    build = "d2e data build --unanswerable-test 1" if lacking else "d2e data build --swap-test 1"
    remedy = f"{_MORE_ROWS}, or {build}, gives more"
    few = f"Too few rows to compare by subset (fewer than {ENOUGH_ROWS})"
    return (f"{few}: {'; '.join(counts)}", remedy) if counts else ("", "")


def _tagged_by(comparison: Comparison) -> str:
    if not comparison.tagged_by:
        return ""
    strangers = comparison.strangers
    note = f"; {', '.join(strangers)} {'are' if len(strangers) > 1 else 'is'} of another model" if strangers else ""
    return f" Subsets by the habit of {', '.join(comparison.tagged_by)}{note}."


def untagged_note(count: int) -> str:
    return f" {count:,} untagged sample{'s are' if count > 1 else ' is'} left out." if count else ""
