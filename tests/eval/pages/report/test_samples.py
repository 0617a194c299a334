"""Samples on the page: which are shown in full, and a browser that holds all and counts as a reader would."""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from eval.compare.runs import load_runs
from eval.pages.report import samples as browser
from eval.pages.report.page import ReportOptions, render_page, write_report
from eval.pages.report.samples import choose_samples
from eval.score.predictions import Prediction
from tests.browser import after_scripts
from tests.command import output_of
from tests.factories import choice, make_run, prediction, story

ATTACK = "</script><script>document.title = 'taken over'</script><!-- <b>bold</b> & 'quoted' \u2028"
MARKS = {  # right or wrong, by sample
    "base": "1001 0110 1010 0000 1111 0101 10",
    "sft": "1101 0010 1011 0100 1110 0101 01",
    "d2e": "1111 0011 1001 0111 1100 0111 00",
}
NAMES = list(MARKS)


def rows(name: str) -> list[Prediction]:
    """26 predictions, nli and scq in turn; the 5th holds what must not act on the page."""
    marks = [mark == "1" for mark in MARKS[name].replace(" ", "")]
    made = [choice(n, right) if n % 2 else prediction(n, right) for n, right in enumerate(marks)]
    made[5] = prediction(5, marks[5], context=f"The cat sat. {ATTACK}", output=f"{ATTACK} {name}")
    return made


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    trained = {"d2e": {"recipe": "model: {}"}}  # so the page opens with it and not with the second run
    return [make_run(folder / name, rows(name), **trained.get(name, {})) for name in NAMES]


@pytest.fixture(scope="module")
def page(runs: list[Path]) -> Path:
    out = runs[0].parent / "report.html"
    write_report(load_runs(runs), out)
    return out


def recounted(first: str, other: str) -> Counter[str]:
    """Outcomes from the marks alone."""
    names = {"01": "fixed", "10": "broken", "11": "both right", "00": "both wrong"}
    pairs = zip(MARKS[first].replace(" ", ""), MARKS[other].replace(" ", ""), strict=True)
    return Counter(names["".join(pair)] for pair in pairs)


def data_of(text: str) -> dict[str, Any]:
    found = re.search(r'<script id="data" type="application/(json|gzip)">(.*?)</script>', text, flags=re.DOTALL)
    text_of = {"json": lambda text: text, "gzip": lambda text: gzip.decompress(base64.b64decode(text))}
    return json.loads(text_of[found[1]](found[2]))


def status(document: str) -> str:
    [text] = re.findall(r'<p id="status" role="status">(.*?)</p>', document)
    return html.unescape(text)


def cards(document: str) -> list[str]:
    return re.findall(r'<article class="card">.*?</article>', document, flags=re.DOTALL)


def chips(document: str) -> dict[str, int]:
    found = re.findall(r'<span class="chip">([^<]*) <span class="count">(\d+)</span>', document)
    return {name: int(count) for name, count in found}


def setting(**controls: str) -> str:
    """A script that sets controls as a reader does."""
    moves = [f"by('{name}').value = {json.dumps(value)};" for name, value in controls.items()]
    return "".join(moves) + "by('filters').dispatchEvent(new Event('input'));"


def test_the_table_counts_what_was_fixed_and_broken(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    table = text[text.index("from base to") : text.index('<div id="browser"')]
    for name in ("sft", "d2e"):
        found = re.search(rf"<td>{name}</td>(.*?)</tr>", table, flags=re.DOTALL)
        counts = recounted("base", name)
        assert [int(n) for n in re.findall(r">(\d+)</td>", found[1])] == [
            counts[kind] for kind in ("fixed", "broken", "both right", "both wrong")
        ]


def test_the_data_is_every_sample_with_all_that_was_said(page: Path) -> None:
    data = data_of(page.read_text(encoding="utf-8"))
    texts = data["texts"]
    assert len(set(texts)) == len(texts), "each text is written once"
    assert data["runs"] == NAMES
    expected = {name: {row.id: row for row in rows(name)} for name in NAMES}
    assert {sample[1] for sample in data["samples"]} == set(expected["base"])
    for group, name, context, question, options, gold, answers in data["samples"]:
        row = expected["base"][name]
        assert data["groups"][group] == [row.dataset, row.relation, row.format]
        assert (texts[context], texts[question]) == (row.context.strip(), row.question)
        assert ([texts[o] for o in options], [texts[g] for g in gold]) == (row.options, row.gold)
        for run, (right, f1, said, output, *_) in zip(NAMES, answers, strict=True):
            own = expected[run][name]
            assert (right, f1) == (int(own.exact_match == 1), 100 * own.f1)
            assert ([texts[a] for a in said], texts[output]) == (own.answer, own.output.strip())


def test_a_large_page_is_compressed_to_the_same_data_and_unpacks_in_a_browser(
    runs: list[Path], page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browser, "COMPRESS_FROM", 0)
    out = tmp_path / "large.html"
    write_report(load_runs(runs), out)
    first = out.read_bytes()
    assert data_of(first.decode()) == data_of(page.read_text(encoding="utf-8"))
    assert b"The cat sat." not in first[first.index(b'id="data"') :]
    write_report(load_runs(runs), out)
    assert out.read_bytes() == first, "the same runs make the same page"
    shown = after_scripts(out, until="document.querySelector('.card')")
    assert status(shown) == "5 shown of 26 that fit (base → d2e), out of 26 samples."


def test_the_browser_takes_the_place_of_the_fixed_samples_and_shows_more_on_request(page: Path) -> None:
    shown = after_scripts(page)
    assert len(cards(shown)) == 5
    assert all(re.search(r"<h3[^>]*>(Fixed|Broken)", card) for card in cards(shown)), "changed samples come first"
    assert len(cards(after_scripts(page, "by('more').click(); by('more').click();"))) == 26


@pytest.mark.parametrize(("first", "other"), [("base", "sft"), ("d2e", "sft")])
def test_the_pair_of_runs_is_chosen(page: Path, runs: list[Path], tmp_path: Path, first: str, other: str) -> None:
    pair = {"from": str(NAMES.index(first)), "to": str(NAMES.index(other))}
    shown = after_scripts(page, setting(**pair))
    counts = recounted(first, other)
    kinds = ("fixed", "broken", "both right", "both wrong")
    assert chips(shown) == {"All": 26, **{kind.capitalize(): counts[kind] for kind in kinds}}
    write_report(load_runs([runs[NAMES.index(first)]]), tmp_path / "one.html")
    alone, right = after_scripts(tmp_path / "one.html"), MARKS[first].count("1")
    assert chips(alone) == {"All": 26, "Right": right, "Wrong": 26 - right}
    assert alone.count('<label class="pair" hidden="">') == 2


def test_filters_and_search_narrow_what_is_shown(page: Path) -> None:
    fixed = "document.querySelector('[name=change][value=fixed]').click();"
    shown = after_scripts(page, fixed)
    assert f"of {recounted('base', 'd2e')['fixed']} that fit" in status(shown)
    for card in cards(shown):
        verdicts = re.findall(r"[✓✗] (right|wrong)</span> · (\w+)", card)
        assert verdicts[0] == ("wrong", "base")
        assert verdicts[2] == ("right", "d2e")

    marks = zip(*(MARKS[name].replace(" ", "") for name in ("base", "d2e")), strict=True)
    kitchen = [n for n, pair in enumerate(marks) if pair == ("0", "1") and n % 2 and n != 5]
    narrowed = after_scripts(page, fixed + setting(dataset="kitchen", relation="causal", format="scq"))
    assert {int(n) for n in re.findall(r"· s(\d+)</p>", "".join(cards(narrowed)))} == set(kitchen)
    assert f"of {len(kitchen)} that fit (base → d2e, fixed, kitchen, causal, scq)" in status(narrowed)

    words = after_scripts(page, setting(search="KETTLE  13:"))
    assert len(cards(words)) == 1, "all words, in any case and place"
    assert "s13" in cards(words)[0]
    assert "<mark>" in cards(words)[0]
    none = after_scripts(page, setting(search="(.*"))
    assert status(none) == "None of 26 samples fits (base → d2e, “(.*”)."
    cleared = after_scripts(page, fixed + setting(search="x") + "by('clear').click();")
    assert status(cleared) == "5 shown of 26 that fit (base → d2e), out of 26 samples."


def test_texts_are_left_out_on_request(runs: list[Path], tmp_path: Path) -> None:
    page = render_page(load_runs(runs), ReportOptions(samples=26, no_texts_of=["stories"]))
    everything = page + json.dumps(data_of(page))
    assert "The cat sat." not in everything
    assert "Context 0:" not in everything
    assert "Context 1:" in everything, "of kitchen"
    assert "The texts of stories are left out" in page
    data = data_of(page)
    stories = [sample for sample in data["samples"] if data["groups"][sample[0]][0] == "stories"]
    assert [[one[0] for one in sample[6]] for sample in stories if sample[1] == "s2"] == [[0, 0, 1]]
    assert all(data["texts"][sample[5][0]] == "positive" for sample in stories), "labels are no texts"
    out = tmp_path / "none.html"
    output_of("report", *runs, "--out", out, "--no-texts")
    text = out.read_text(encoding="utf-8")
    assert "kettle" not in text
    assert "a spoon" not in text
    shown = after_scripts(out)
    assert len(cards(shown)) == shown.count('<dd class="quiet">The texts of this dataset are left out') - 5 == 5


def test_samples_with_subsets_can_be_filtered_by_them_and_show_the_habit(tmp_path: Path) -> None:
    rows = [story(1, "aligned", "garage", habit="garage"), story(2, "conflict", "kitchen"), prediction(3, True)]
    write_report(load_runs([make_run(tmp_path / "run", rows)]), tmp_path / "report.html")
    shown = after_scripts(tmp_path / "report.html", fragment="#subset=conflict")
    cards = re.findall(r'<article class="card">.*?</article>', shown, flags=re.DOTALL)
    assert len(cards) == 1
    assert "habit · temporal · qa · conflict · " in cards[0]
    assert re.search(r"Habit: .*?<p[^>]*>kitchen</p>", cards[0])
    assert "the habit)" in cards[0], "a wrong answer that is the habit is marked"
    secret = load_runs([make_run(tmp_path / "secret", [story(1, "conflict", "attic", habit="a secret place")])])
    assert "secret place" not in render_page(secret, ReportOptions(no_texts_of=("habit",)))


def test_changed_samples_come_first_and_outcomes_and_groups_take_turns(tmp_path: Path) -> None:
    before = [prediction(n, right) for n, right in enumerate([False, False, True, True, True])]
    after = [prediction(n, right) for n, right in enumerate([True, True, True, False, True])]
    rows = {"before": [*before, choice(9, False)], "after": [*after, choice(9, True)]}
    runs = load_runs([make_run(tmp_path / name, own) for name, own in rows.items()])
    chosen = [(shown.outcome.split()[0], shown.sample.id) for shown in choose_samples(runs, 5)]
    assert chosen == [("fixed", "s0"), ("broken", "s3"), ("fixed", "s9"), ("fixed", "s1"), ("right", "s2")]
    in_turn = [shown.outcome.split()[0] for shown in choose_samples(runs, 4, changed_first=False)]
    assert in_turn == ["fixed", "broken", "right", "fixed"]
    assert choose_samples(runs, 99) == choose_samples(runs, 6)
    assert choose_samples(runs, 0) == []
