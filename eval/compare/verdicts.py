"""A comparison as text: its tables, and at the end a verdict on each run against the first.

A run uses the context more if it is better on conflict rows, where the habit is wrong, and not worse on aligned ones.
Both are needed, because a method may trade one for the other. If its outputs contain the context's answer as often,
only the form of the answers differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from d2e_sft.util.markup import latex_table
from d2e_sft.util.table import Styled, Table, percent
from d2e_sft.util.terminal import folded, is_quiet
from eval.compare.compare import Block, Comparison
from eval.compare.figures import Part, corrected_p, points
from eval.compare.tables import TEST_OF_MEASURES, comparison_tables, small_note
from eval.score.frame import AVERAGE
from eval.score.statistics import Difference

COMPARED = ("conflict", "aligned")  # what a verdict is about
MORE, LESS = "uses the context more", "uses the context less"
HIGHER = "conflict higher, aligned not decided"
SAME, OPEN = "no difference", "not decided"
_ABOUT_CONTEXT = (MORE, HIGHER, LESS)
CONTAINING = ("context_only", "both")  # the cells of conflict outputs that contain an accepted answer
_SENTENCES = {  # a verdict → its sentence about a run and the first one
    MORE: "{run} uses the context more than {first}",
    LESS: "{run} uses the context less than {first}",
    SAME: "{run} and {first} do not differ",
    OPEN: "{run} against {first} is not decided",
    "conflict higher, aligned lower": "{run} is better than {first} on conflict rows and worse on aligned rows",
    HIGHER: "{run} is better than {first} on conflict rows, aligned rows are undecided",
    "aligned lower, conflict not decided": "{run} is worse than {first} on aligned rows, conflict rows are undecided",
}
_REFUSED = (  # measure, and the words of its verdict
    ("refusal", "refuses", "rows that lack the answer"),
    ("false_refusal", "wrongly refuses", "rows that have it"),
)
MARGIN = 0.03  # aligned accuracy, as a fraction, that a run may lose and still use the context more


def text_of(
    comparison: Comparison,
    form: str = "text",
    *,
    groups: bool = True,
    detail: bool = False,
    part: Part | None = None,
    curves: Sequence[Table] = (),
    lines: Sequence[str] = (),
) -> str:
    """Return tables and verdicts, with the `curves` and `lines` of probes; for LaTeX tables alone.

    Args:
        form: `text` for the terminal, `markdown` with all details, or `latex`.
        groups: False leaves out tables by group if the benchmark is about subsets.
    """
    if form == "latex" and comparison.is_by_measures and part is None:
        return measures_latex(comparison)
    is_page, hidden = form == "markdown", comparison.is_about_subsets and not groups and part is None
    tables = comparison_tables(comparison, groups=is_page or not hidden, detail=is_page or detail, part=part)
    tables += curves
    if form == "latex":
        return "\n".join(
            latex_table(table, f"{comparison.latex_label}-{number}") for number, table in enumerate(tables, start=1)
        )
    if is_page:
        return "\n\n".join([*map(Table.markdown, tables), *closing_lines(comparison), *lines]) + "\n"
    parts = [f"{comparison.bench}; tables by dataset, relation and format: --groups"] if hidden else []
    closing = folded("\n".join([*closing_lines(comparison, words=not is_quiet()), *lines]))
    return "\n\n".join([*parts, *map(Table.terminal, tables), closing]).rstrip("\n") + "\n"


def measures_latex(comparison: Comparison) -> str:
    """Return a row for each result, the best bold; † marks a corrected p below 0.05 of the difference to the first."""
    rows: list[list[str]] = [[label] for label in comparison.labels]
    columns = [""]
    for block in comparison.blocks("measures", "measure", "unit"):
        scores = list(block.scores.values())
        columns.append(f"{block.name[0]} (n={scores[0].rows:,})")
        shown = [percent(score.mean) for score in scores]
        best = max(shown, key=float)
        for cells, text, score in zip(rows, shown, scores, strict=True):
            mark = "†" if score.change is not None and score.change.significant else ""
            cell = f"{text}{mark} [{percent(score.low)}, {percent(score.high)}]"
            cells.append(Styled.of(cell, best=text == best and len(set(shown)) > 1))
    caption = f"{comparison.bench}: percent, with {comparison.intervals}."
    if len(comparison.labels) > 1:
        caption += f" † differs from {comparison.labels[0]} ({comparison.test(TEST_OF_MEASURES)}, Holm, p < 0.05)."
    return latex_table(Table.of(columns, rows, caption), comparison.latex_label)


def closing_lines(comparison: Comparison, *, words: bool = True) -> list[str]:
    """Return costs, differences of decoding, verdicts and what their `words` mean, and footnotes on rows left out."""
    meaning, bad = verdict_words(comparison) if words else "", comparison.bad_rows
    unscored = f"{bad:,} bad rows of {comparison.bench} are in no score (--skip-bad)" if bad else ""
    notes = [small_note(comparison), unscored]
    first = [cost_line(comparison), comparison.decoding.line(), meaning]
    return [*filter(None, first), *verdicts(comparison), *filter(None, notes)]


def cost_line(comparison: Comparison) -> str:
    """Return what each training cost, as a multiple of the first one's; empty for fewer than two trainings."""
    costs = {label: (cost["cpu_seconds"], cost["steps"]) for label, cost in (comparison.costs or {}).items()}
    first = next((seconds for seconds, _ in costs.values()), 0)
    if len(costs) < 2 or not first:
        return ""
    shown = [f"{label} {own:,.1f} ({own / first:.1f} ×, {steps:,.0f} steps)" for label, (own, steps) in costs.items()]
    return f"Cost of training in processor seconds: {', '.join(shown)}."


def verdicts(comparison: Comparison) -> list[str]:
    """Return a sentence for each run after the first, on its main score or on subsets, and on decided refusals.

    Decided gains come first, the largest at the top, then decided losses, then what is not decided.
    """
    main = {} if is_about_conflict(comparison) else main_verdicts(comparison)
    return [*main.values(), *subset_verdicts(comparison).values(), *refusal_verdicts(comparison)]


def is_about_conflict(comparison: Comparison) -> bool:
    """Whether conflict rows decide: the benchmark is about subsets, and has enough of them."""
    block = comparison.headline
    return block is not None and comparison.is_about_subsets and "conflict" in block.sizes


def main_change(comparison: Comparison, run: str) -> Difference:
    """Return a run's difference in the mean over all samples, which is one test a run, or in the first measure."""
    block, measure = comparison.main
    score = block.score(run, measure)
    assert score is not None
    assert score.change is not None
    return score.change if comparison.is_by_measures else replace(score.change, adjusted_p=None)


def main_verdicts(comparison: Comparison) -> dict[str, str]:
    """Return run → the sentence on its main score."""
    measure, (first, *others) = comparison.main[1], comparison.labels
    changes, lines = {label: main_change(comparison, label) for label in others}, dict[str, str]()
    for label in _in_order({label: change.mean * change.significant for label, change in changes.items()}):
        change = changes[label]
        sentence = f"{label} scores {'higher' if change.mean > 0 else 'lower'} than {first}"
        sentence = sentence if change.significant else f"{label} against {first} is not decided"
        shown = points(change, star=False, unit=" points")
        lines[label] = f"{sentence}: {measure} {shown}, p {corrected_p(change)}, {comparison.size}."
    return lines


def _in_order(decided: Mapping[str, float]) -> list[str]:
    """Return the runs with the decided differences given: gains, then losses, the largest first, then zeros."""
    return sorted(decided, key=lambda label: ((decided[label] <= 0) + (decided[label] == 0), -abs(decided[label])))


def verdict_words(comparison: Comparison) -> str:
    """Return what the words of verdicts on subsets mean; empty without such verdicts."""
    block = comparison.headline
    if block is None or len(comparison.labels) == 1 or "conflict" not in block.sizes:
        return ""
    margin = f"{100 * MARGIN:g} points"
    size = " and ".join(f"{block.sizes[name]:,} {name}" for name in COMPARED if name in block.sizes)
    aligned = f", and a loss of {margin} on aligned rows is ruled out" if "aligned" in block.sizes else ""
    scope = f"Verdicts are about {size} samples{' (average)' if block.name == (AVERAGE,) else ''}"
    scope += f" of each of {len(comparison.seeds)} seeds." if comparison.seeds else "."
    better = f"{MORE.capitalize()}: conflict accuracy is significantly higher{aligned}."
    return f"{scope} {better} No difference: {'both intervals are' if aligned else 'its interval is'} within {margin}"


def subset_verdicts(comparison: Comparison) -> dict[str, str]:
    """Return run → the sentence on its subsets; empty without conflict rows."""
    block, first, lines = comparison.headline, comparison.labels[0], dict[str, str]()
    if block is None or "conflict" not in block.sizes:
        return {}
    changes = {label: subset_changes(block, label) for label in comparison.labels[1:]}
    decided = {label: _decided(comparison, block, label) for label in changes}
    for label in _in_order(decided):
        sentence = _SENTENCES[subset_verdict(changes[label])].format(run=label, first=first)
        shown = [f"{points(c, star=False, unit=' points')} on {name} rows" for name, c in changes[label].items()]
        if (shares := shares_by_form(comparison, block, label)) is not None:
            sentence = f"{label} differs from {first} mostly in the form of its answers"
            own, others = map(percent, shares)
            shown.append(
                f"but {own} % of its conflict outputs contain the context's answer, and {others} % of {first}'s"
            )
        lines[label] = f"{sentence}: {', '.join(shown)}."
    return lines


def shares_by_form(comparison: Comparison, block: Block, run: str) -> tuple[float, float] | None:
    """Return the shares of the run's and the first run's conflict outputs that contain the context's answer.

    None unless exact match decides about conflict rows, and containment differs by less than half as much: then the
    runs differ in the form of their answers, such as a sentence where a word was asked for. Of free answers only.
    """
    free = {other.name for other in comparison.blocks("faithfulness", "dataset")}
    changes, both = subset_changes(block, run), list[float]()
    if block.name not in free or subset_verdict(changes) not in _ABOUT_CONTEXT:
        return None
    for label in (run, comparison.labels[0]):
        cells = [block.score(label, cell, "conflict") for cell in CONTAINING]
        both.append(sum(cell.mean for cell in cells if cell is not None))
    own, others = both
    return (own, others) if (own - others) / changes["conflict"].mean < 0.5 else None


def refusal_verdicts(comparison: Comparison) -> list[str]:
    """Return a sentence for each run that refuses significantly more or fewer rows than the first, rightly or not."""
    block, first, lines = comparison.refusals, comparison.labels[0], list[str]()
    for label in comparison.labels[1:] if block else ():
        said, shown = list[str](), list[str]()
        for measure, verb, rows in _REFUSED:
            score = block.score(label, measure) if block else None
            if score and score.change and score.change.significant:
                said.append(f"{verb} {'more' if score.change.mean > 0 else 'fewer'} of the {score.n:,} {rows}")
                shown.append(points(score.change, star=False, unit=" points"))
        lines += [f"{label} {' and '.join(said)} than {first}: {', '.join(shown)}."] if said else []
    return lines


def _decided(comparison: Comparison, block: Block, run: str) -> float:
    """Return the difference on conflict rows if it is decided and aligned rows were not found to be worse, else 0.

    It is 0, too, if only the form of the answers differs.
    """
    changes = subset_changes(block, run)
    counts = subset_verdict(changes) in _ABOUT_CONTEXT and shares_by_form(comparison, block, run) is None
    return changes["conflict"].mean if counts else 0.0


def leader(comparison: Comparison) -> int | None:
    """Return the place of the run with the largest decided gain against the first; None without one."""
    block, gains = comparison.headline, dict[int, float]()
    for place, label in enumerate(comparison.labels[1:], start=1):
        if block is not None and is_about_conflict(comparison):
            gains[place] = _decided(comparison, block, label)
        else:
            change = main_change(comparison, label)
            gains[place] = change.mean * change.significant
    best = max(gains, key=lambda place: gains[place], default=None)
    return best if best is not None and gains[best] > 0 else None


def subset_changes(block: Block, run: str) -> dict[str, Difference]:
    scores = {name: block.score(run, "accuracy", name) for name in COMPARED}
    return {name: score.change for name, score in scores.items() if score is not None and score.change is not None}


def subset_verdict(changes: dict[str, Difference]) -> str:
    """Return what the changes decide: on conflict rows by the corrected p, on aligned ones by the interval."""
    conflict, aligned = changes["conflict"], changes.get("aligned")
    if all(change.low >= -MARGIN and change.high <= MARGIN for change in changes.values()):
        return SAME
    aligned_lower = aligned is not None and aligned.significant and aligned.mean < 0
    if not conflict.significant:
        return "aligned lower, conflict not decided" if aligned_lower else OPEN
    if conflict.mean < 0:
        return LESS
    if aligned is None or aligned.low >= -MARGIN:
        return MORE
    return "conflict higher, aligned lower" if aligned_lower else HIGHER
