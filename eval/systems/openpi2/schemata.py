"""Schemata: attributes of entities that change, asked step by step (paper section 3.2, table 3), and their errors.

They are scored by exact match against clusters, over procedures (global) and over steps (local). The official script
has quirks, on which published numbers depend. Predictions are normalised for precision but not for recall. An
attribute can be found in every step. A match with a cluster counts for global precision only until its canonical pair
is predicted. The corrected score counts each item once, normalised. For both, a prediction is correct if clusters of
the procedure hold it, also locally.

Errors (section 3.3, table 5) are counted by people's labels and by the gold file. People say whether each predicted
attribute changes at the step (1), does not change (2) or makes no sense (3), and add those that are missing (100).
The gold file says whether its clusters hold a prediction, and whether it changes at that step or at another one.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path
from typing import Any, Self

from d2e_sft.util.errors import UserError
from d2e_sft.util.table import Table, percent
from eval.score.measures import measure
from eval.systems.benchmark import BenchmarkResult
from eval.systems.openpi2.gold import (
    CLUSTERED,
    EXPANDED,
    Change,
    Cluster,
    Names,
    Procedure,
    Procedures,
    check_steps,
    digest_of,
    empty_lines,
    expansions,
    gold_statistics,
    mean,
    normalise,
    read_clustered,
    read_official,
)
from eval.systems.openpi2.task import (
    BertScorer,
    ListingTask,
    OpenPITask,
    PrecisionRecall,
    bertscore_table,
    best_scores,
    cell,
    f1_measure,
    scored,
    scorer_of,
)
from eval.systems.reading import checked

LEVELS = ("entities_global", "attributes_global", "entities_local", "attributes_local")
_COLUMNS = ("of", "precision", "recall", "F1", "F1 expanded", "corrected F1", "corr. expanded")
Schema = Mapping[str, Sequence[str]]  # entity → its attributes, at one step
Schemas = Mapping[str, Sequence[Schema]]  # by procedure, those of each step
Figures = dict[str, PrecisionRecall]  # of each level


def parse_schema(reply: str) -> dict[str, list[str]]:
    """Read `entity (attribute, attribute), entity (attribute)` as attributes by entity, in order.

    Entities are split at `"), "`; text without `" ("` is no entity, and empty attributes are left out.
    """
    schema: dict[str, list[str]] = {}
    for part in reply.strip().split("), "):
        entity, opens, rest = part.partition(" (")
        # The text up to the next " (" is what the official split takes.
        names = [name.strip().strip(".").strip(")") for name in rest.split(" (")[0].split(",")]
        for attribute in filter(None, names) if opens else ():
            schema.setdefault(entity, []).append(attribute)
    return schema


@dataclass(frozen=True)
class ClusterNames:
    """Normalised names by normalised canonical name; of equal canonical names the last one's stay, as officially."""

    entities: dict[str, set[str]]
    attributes: dict[str, dict[str, set[str]]]

    @classmethod
    def of(cls, clusters: Mapping[str, Cluster], expanded: bool) -> Self:
        def plain(names: Names) -> set[str]:
            return set(map(normalise, names.of(expanded)))

        return cls(
            {normalise(name): plain(cluster.names) for name, cluster in clusters.items()},
            {
                normalise(name): {
                    normalise(attribute): plain(names) for attribute, names in cluster.attributes.items()
                }
                for name, cluster in clusters.items()
            },
        )

    def has(self, entity: str) -> bool:
        return any(entity in names for names in self.entities.values())

    def matches(self, entity: str, attribute: str) -> Iterator[tuple[str, str]]:
        """Yield the canonical pairs whose clusters hold the two names."""
        for canonical in (canonical for canonical, names in self.entities.items() if entity in names):
            for canonical_attribute, names in self.attributes[canonical].items():
                if attribute in names:
                    yield canonical, canonical_attribute

    def match(self, pair: tuple[str, str]) -> tuple[str, str] | None:
        """Return the first of these pairs."""
        return next(self.matches(*pair), None)


def score_schemata(procedure: Procedure, steps: Sequence[Schema], *, expanded: bool, official: bool) -> Figures:
    """Score the schemata of a procedure's steps; with `expanded` paraphrases match too."""
    clusters = ClusterNames.of(procedure.clusters, expanded)
    raw = [[(entity, list(names)) for entity, names in step.items()] for step in steps]
    plain = [[(normalise(entity), list(map(normalise, names))) for entity, names in step] for step in raw]
    figures: Figures = {level: PrecisionRecall() for level in LEVELS}
    _precision(figures, clusters, plain, official=official)
    _global_recall(figures, procedure, clusters, raw if official else plain, expanded=expanded, official=official)
    _local_recall(figures, procedure, clusters, raw if official else plain, official=official)
    return figures


_StepEntities = Sequence[Sequence[tuple[str, list[str]]]]  # at each step, entities with their attributes


def _precision(figures: Figures, clusters: ClusterNames, predicted: _StepEntities, *, official: bool) -> None:
    entities: list[Collection[str]] = [[entity for entity, _ in step] for step in predicted]
    pairs: list[Collection[tuple[str, str]]] = [
        [(entity, name) for entity, names in step for name in names] for step in predicted
    ]
    if not official:
        entities, pairs = list(map(set, entities)), list(map(set, pairs))
    distinct, distinct_pairs = set(chain.from_iterable(entities)), set(chain.from_iterable(pairs))
    for level, names in (("entities_local", entities), ("entities_global", [distinct])):
        figures[level].predicted = sum(map(len, names))
        figures[level].predicted_right = sum(map(clusters.has, chain.from_iterable(names)))
    for level, listed_pairs in (("attributes_local", pairs), ("attributes_global", [distinct_pairs])):
        figures[level].predicted = sum(map(len, listed_pairs))
        matches = map(clusters.match, chain.from_iterable(listed_pairs))
        figures[level].predicted_right = sum(match is not None for match in matches)
    if official:
        seen: set[tuple[str, str]] = set()
        right = 0
        for pair in chain.from_iterable(pairs):
            match = clusters.match(pair)
            right += match is not None and match not in seen
            seen.add(pair)
        figures["attributes_global"].predicted_right = right


def _global_recall(
    figures: Figures,
    procedure: Procedure,
    clusters: ClusterNames,
    predicted: _StepEntities,
    *,
    expanded: bool,
    official: bool,
) -> None:
    """Count the clusters that are named; officially those of attributes as written, and in each step."""
    groups: list[tuple[set[str], list[set[str]]]] = [
        (names, list(clusters.attributes[canonical].values())) for canonical, names in clusters.entities.items()
    ]
    if official:
        groups = [
            (clusters.entities[normalise(name)], [set(names.of(expanded)) for names in cluster.attributes.values()])
            for name, cluster in procedure.clusters.items()
        ]
    entities, attributes = figures["entities_global"], figures["attributes_global"]
    for names, expected in groups:
        matching = [named for step in predicted for entity, named in step if entity in names]
        entities.gold += 1
        entities.gold_found += bool(matching)
        attributes.gold += len(expected)
        hits = [sum(not cluster.isdisjoint(named) for named in matching) for cluster in expected]
        attributes.gold_found += sum(hits) if official else sum(map(bool, hits))


def _local_recall(
    figures: Figures, procedure: Procedure, clusters: ClusterNames, predicted: _StepEntities, *, official: bool
) -> None:
    entities, attributes = figures["entities_local"], figures["attributes_local"]
    for states in procedure.states:
        canonical = normalise(states.entity)
        names, known = clusters.entities[canonical], clusters.attributes[canonical]
        for changes, step in zip(states.steps, predicted, strict=True):
            changing = [normalise(change.attribute) for change in changes]
            expected = [known[name] for name in (changing if official else set(changing))]
            if not expected:
                continue
            matching = [named for entity, named in step if entity in names]
            hits = [sum(name in cluster for named in matching for name in named) for cluster in expected]
            entities.gold += 1
            entities.gold_found += len(matching) if official else bool(matching)
            attributes.gold += len(expected) * (len(step) if official else 1)
            attributes.gold_found += sum(hits) if official else sum(map(bool, hits))


MISSING = "missing"
_LABELS = {"1": "correct", "2": "no change", "3": "nonsense", "100": MISSING, "": "no label"}
_JUDGED = ("correct", "no change", "nonsense")
_PLACES = ("this step", "another step", "no cluster")
Labelled = Mapping[str, Sequence[Sequence[tuple[str, str, str]]]]  # by procedure and step: entity, attribute, label


def _places(gold: Procedures, labelled: Labelled, expanded: bool) -> dict[str, Counter[str]]:
    """Return by label how many attributes the gold file changes at this step, at another one, or has in no cluster."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for key, steps in labelled.items():
        clusters = ClusterNames.of(gold[key].clusters, expanded)
        for number, rows in enumerate(steps):
            changed = {
                (normalise(states.entity), normalise(change.attribute))
                for states in gold[key].states
                for change in states.steps[number]
            }
            for entity, attribute, label in rows:
                pairs = set(clusters.matches(normalise(entity), normalise(attribute)))
                counts[label][_PLACES[(2 if not pairs else 0 if changed & pairs else 1)]] += 1
    return counts


def errors_by_gold(gold: Procedures, predictions: Schemas, local: Mapping[str, PrecisionRecall]) -> Any:
    """Return where the gold file has the predictions, and how many of its changes are missing, with a table.

    `local` has the corrected figures of attributes at each step, without and with expansion.
    """
    labelled = {
        key: [[(entity, name, "") for entity, names in step.items() for name in names] for step in steps]
        for key, steps in predictions.items()
    }
    rows, detail = [], {}
    for name, figures in local.items():
        counts, missing = _places(gold, labelled, name == "expanded")[""], figures.gold - figures.gold_found
        detail[name] = {place: counts[place] for place in _PLACES} | {MISSING: missing}
        parts = (percent(counts[place] / counts.total() if counts else None) for place in _PLACES)
        rows.append((name, counts.total(), *parts, missing, figures.gold))
    columns = ("clusters", "predicted", *(f"{place} %" for place in _PLACES), MISSING, "of")
    return detail, Table.of(columns, rows, "Errors by the gold file: where a predicted attribute changes")


def _bertscores(gold: Procedures, answers: Schemas, scorer: BertScorer, expanded: bool) -> dict[str, float | None]:
    """Return the mean best BERTScore of each predicted "ATTRIBUTE of ENTITY", against the procedure and its step."""

    def named(entities: Sequence[str], attributes: Sequence[str], _: Change) -> list[str]:
        return [f"{name} of {entity}" for entity, name in product(entities, attributes)]

    whole: list[tuple[str, Sequence[str]]] = []
    by_step: list[tuple[str, Sequence[str]]] = []
    for key, steps in answers.items():
        texts = [[f"{name} of {entity}" for entity, names in step.items() for name in names] for step in steps]
        gold_steps = [list(chain.from_iterable(s)) for s in gold[key].texts_by_step(named, expanded=expanded)]
        everything = sorted({text for step in gold_steps for text in step})
        whole += [(text, everything) for text in sorted({text for step in texts for text in step})]
        by_step += [(text, step) for predicted, step in zip(texts, gold_steps, strict=True) for text in predicted]
    return {"global": mean(best_scores(scorer, whole)), "local": mean(best_scores(scorer, by_step))}


class Schemata(ListingTask):
    kind = "schemata"
    schema = dict[str, list[str]]

    def parse(self, reply: str) -> dict[str, list[str]]:
        return parse_schema(reply)

    def evaluate(self, gold: Procedures, answers: Schemas, options: Any, seed: int) -> BenchmarkResult:
        """Return scores and tables; the headline is that of attributes (the paper's entity-attribute pairs)."""
        scorer, kinds = scorer_of(options), expansions(gold)
        rules = {"official": True, "corrected": False}
        by_procedure = {
            (rule, kind): {
                key: score_schemata(gold[key], steps, expanded=expanded, official=official)
                for key, steps in answers.items()
            }
            for rule, official in rules.items()
            for kind, expanded in kinds.items()
        }
        totals = {
            form: {level: PrecisionRecall.total(levels[level] for levels in figures.values()) for level in LEVELS}
            for form, figures in by_procedure.items()
        }
        bert: dict[str, dict[str, float | None]] = {
            kind: _bertscores(gold, answers, scorer, expanded) if scorer else {"global": None, "local": None}
            for kind, expanded in kinds.items()
        }
        scores: dict[str, Any] = {
            f"schemata_{level}_f1" + "_expanded" * expanded: totals["official", kind][f"attributes_{level}"].f1
            for kind, expanded in kinds.items()
            for level in ("global", "local")
        }
        detail: dict[str, Any] = {"procedures": len(answers)}
        for rule in rules:
            detail[rule] = {
                kind: {level: item.as_json() for level, item in totals[rule, kind].items()} for kind in kinds
            }
        detail["bertscore"] = bert
        local = {kind: totals["corrected", kind]["attributes_local"] for kind in kinds}
        detail["errors"], errors = errors_by_gold(gold, answers, local)
        detail["gold"], statistics = gold_statistics(gold)
        rows = []
        for level in LEVELS:
            forms = (totals.get((rule, kind)) for rule in rules for kind in ("plain", "expanded"))
            f1 = (cell(figures[level].f1 if figures else None) for figures in forms)
            plain = totals["official", "plain"][level]
            rows.append((level.replace("_", ", "), cell(plain.precision), cell(plain.recall), *f1))
        by_expansion = [(name, value, bert.get("expanded", {}).get(name)) for name, value in bert["plain"].items()]
        tables = [
            Table.of(_COLUMNS, rows, f"Schemata, exact match ({scored(len(answers), len(gold))})"),
            bertscore_table("Schemata, BERTScore", by_expansion),
            errors,
            statistics,
        ]
        sha = digest_of(gold, answers)
        measures = [
            item
            for (rule, kind), figures in by_procedure.items()
            for level in ("global", "local")
            for item in f1_measure(
                f"schemata F1, {level}" + " + expansion" * kinds[kind] + ", corrected" * (not rules[rule]),
                sha,
                {key: levels[f"attributes_{level}"] for key, levels in figures.items()},
            )
        ]
        return BenchmarkResult({**scores, "schemata": detail}, tables, measures=measures)


class SchemaErrors(OpenPITask[Procedures, Labelled]):
    """Predicted schemata that people labelled, in the form of the published analyses or flat."""

    kind = "errors"
    official = (EXPANDED, CLUSTERED)

    def read_gold(self, path: Path, options: Any) -> Procedures:
        return read_clustered(path)

    def read_predictions(self, path: Path, gold: Procedures, options: Any) -> Labelled:
        content = read_official(path, list[Any])
        # A published procedure ends with the word "annotated".
        steps = {key: [step for step in items if not isinstance(step, str)] for key, items in content.items()}
        labelled = checked(dict[str, list[dict[str, list[tuple[str, str | int]]]]], steps, str(path))
        check_steps(path, labelled, {key: procedure.steps for key, procedure in gold.items()})
        return {key: [list(_rows(path, key, step)) for step in items] for key, items in labelled.items()}

    def template(self, gold: Procedures, options: Any) -> Iterator[dict[str, Any]]:
        """Return one line per step; a step with more predictions gets more lines."""
        return empty_lines(self.kind, gold)

    def evaluate(self, gold: Procedures, answers: Labelled, options: Any, seed: int) -> BenchmarkResult:
        """Return the share of each class among the labelled predictions; what is missing is counted against them."""
        expanded = "expanded" in expansions(gold)
        places = _places(gold, answers, expanded)
        classes = [name for name in _LABELS.values() if name in places]
        judged = sum(places[name].total() for name in classes if name in _JUDGED)
        rows: list[tuple[Any, ...]] = []
        detail: dict[str, dict[str, Any]] = {}
        for name in classes:
            count = places[name].total()
            share = count / judged if judged else None
            detail[name] = {"count": count, "share": share, **{place: places[name][place] for place in _PLACES}}
            rows.append((name, count, percent(share), *(percent(places[name][place] / count) for place in _PLACES)))
        columns = ("label", "n", "% of labelled", *(f"gold: {place} %" for place in _PLACES))
        title = f"Errors by people's labels ({scored(len(answers), len(gold))}{', with expansion' * expanded})"
        counts = {
            key: [sum(row[2] in kinds for step in steps for row in step) for kinds in (_JUDGED[:1], _JUDGED)]
            for key, steps in answers.items()
        }
        measures = measure("correct by people's labels", "share", "procedures", digest_of(gold, answers), counts)
        scores = {"errors_correct": detail.get("correct", {}).get("share"), "errors": detail}
        return BenchmarkResult(scores, [Table.of(columns, rows, title)], measures=measures)


def _rows(path: Path, key: str, step: Mapping[str, Sequence[tuple[str, str | int]]]) -> Iterator[tuple[str, str, str]]:
    """Yield entity, attribute and label; the published files write an empty attribute where none is missing."""
    for entity, (attribute, label) in ((entity, row) for entity, rows in step.items() for row in rows):
        name = _LABELS.get(str(label), str(label) if label in _LABELS.values() else "")
        if not name:
            raise UserError(
                f"{path}: {key}: {attribute!r} of {entity!r} has the label {label!r}; expected one of "
                + ", ".join(f"{code!r} ({name})" for code, name in _LABELS.items() if code)
            )
        if attribute.strip():
            yield entity, attribute.strip(), name
