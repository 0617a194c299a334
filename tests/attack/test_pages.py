"""Scripts and elements in every text of a page (names, rows, answers, recipes), checked in a browser."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import markdown
import pytest

from d2e_sft.data.built import read_manifest
from d2e_sft.data.prompts import load_prompt_set
from d2e_sft.data.sample import EventSample
from d2e_sft.server.start import ServeOptions
from d2e_sft.util.files import with_checksums, write_json
from data_builders.build.card import render_card
from data_builders.commands.show import write_rows_page
from data_builders.quality.diagnosis import Diagnosis, diagnose
from eval.compare.judged import ErrorPattern, JudgedError, RunPatterns, output_digest
from eval.compare.reading import settings
from eval.compare.runs import load_measured, load_runs
from eval.pages.demo.page import build_page, load_demo_model
from eval.pages.demo.question import Question
from eval.pages.report.page import ReportOptions, write_report
from eval.pages.report.patterns import write_error_report
from eval.pages.sweep import write_sweep_page
from eval.run.options import EvalOptions
from eval.sweep.plan import plan_sweep
from eval.sweep.results import collect
from eval.sweep.spec import SweepSpec
from tests.attack.frame import Attempt, attack
from tests.browser import Tab, shared_tab
from tests.command import d2e
from tests.d2e_sft.hub.runs import card_of, write_manifest, write_scores
from tests.d2e_sft.hub.runs import make_run as make_trained
from tests.d2e_sft.server.served import running
from tests.eval.compare.rows import accuracy, save_result
from tests.eval.fake_sweeps import probed_rows
from tests.factories import choice, make_run, prediction, save_bench, story
from tests.tiny import tiny_model, tiny_tokenizer

NOTHING = "no element of it is on a page, and no script runs"
_RUN = "window.planted=(window.planted||0)+1"
_ENDS = (
    "", '"', "'", "`", '">', "'>", "\\\">", "\\x3e", "-->", "]]>", "*/", "</script>", "</script ", "</SCRIPT\n>",
    "</textarea>", "</title>", "</style>", "</pre>", "</code>", "</option></select>", "</svg>", "</text></svg>",
    "</template>", "</noscript>", "&quot;>", "&#34;>", "\u2028", "\0", "|", "](", "```\n\n", "{{", "{%",
    "<!--", "<![CDATA[",
)  # fmt: skip
_BEGINNINGS = (
    f"<script planted>{_RUN}</script>",
    f"<ScRiPt planted>{_RUN}//",
    f"<img planted src=x onerror={_RUN}>",
    f"<img/planted/src=x/onerror={_RUN}>",
    f"<svg planted onload={_RUN}>",
    f"<svg planted><script>{_RUN}</script></svg>",
    f"<svg planted><animate onbegin={_RUN} attributeName=x dur=1s>",
    f"<iframe planted srcdoc=\"<script>parent.{_RUN.replace('window', 'parent')}</script>\">",
    f"<details planted open ontoggle={_RUN}>",
    f"<input planted autofocus onfocus={_RUN}>",
    f"<video planted><source onerror={_RUN}></video>",
    f"<body planted onload={_RUN}>",
    f"<math planted><a href=javascript:{_RUN}>x</a></math>",
    f"<a planted href=javascript:{_RUN}>x</a>",
    f"<form planted action=javascript:{_RUN}><button>x</button></form>",
    f"<meta planted http-equiv=refresh content=0;url=javascript:{_RUN}>",
    "<base planted href=//planted.invalid/>",
    "<link planted rel=stylesheet href=//planted.invalid/x.css>",
    "<style planted>*{display:none}</style>",
    "<plaintext planted>",
    "<b planted>",
    f" planted onmouseover={_RUN} x=",
    f' planted tabindex=1 onfocus="{_RUN}" ',
    f"javascript:{_RUN}//",
    f"[x](javascript:{_RUN})",
    f"<javascript:{_RUN}>",
    f"![x](x\" planted onerror=\"{_RUN})",
    "&lt;b planted&gt;",
    f"`{_RUN}`",
    "{{ 7 * 7 }}${7*7}#{7*7}",
)  # fmt: skip

# Finds planted content on a page. `planted` is the name of a global, an attribute, and a host that does not exist.
_FOUND = """(() => {
  const links = ["href", "src", "action", "formaction", "xlink:href", "data", "srcdoc", "content"];
  const bad = [...document.querySelectorAll("*")].filter((one) => one.hasAttribute("planted")
    || [...one.attributes].some(({name, value}) => (name.startsWith("on") && value.includes("planted"))
      || (links.includes(name) && /^\\s*(javascript|vbscript):|planted\\.invalid/i.test(value))));
  return {ran: window.planted || 0, elements: bad.map((one) => one.outerHTML.slice(0, 200)),
          hidden: getComputedStyle(document.body).display === "none"};
})()"""
# Does what a reader may do: unfold, point at, focus, press and choose.
_USE = """(() => {
  document.querySelectorAll("details").forEach((one) => { one.open = true });
  for (const one of document.querySelectorAll("body *")) {
    for (const kind of ["mouseover", "mouseenter", "focus", "pointerdown"]) one.dispatchEvent(new Event(kind));
  }
  document.querySelectorAll("button, summary, input[type=radio]").forEach((one) => one.click());
  for (const one of document.querySelectorAll("select, input[type=range]")) {
    if (one.options) one.selectedIndex = one.options.length - 1; else one.value = one.max;
    for (const kind of ["input", "change"]) one.dispatchEvent(new Event(kind, {bubbles: true}));
  }
  document.querySelectorAll("details").forEach((one) => { one.open = true });
})()"""


class Planter:
    """Makes payloads, and keeps them for the search."""

    def __init__(self, numbers: random.Random) -> None:
        self._numbers = numbers
        self.planted: list[str] = []

    def __call__(self) -> str:
        """Return a new payload, made unique by a number."""
        pick = self._numbers.choice
        text = f"p{len(self.planted)} {pick(_ENDS)}{pick(_BEGINNINGS)}{pick(_ENDS)}"
        self.planted.append(text)
        return text

    def line(self) -> str:
        """Return a payload that is valid as a name: no NUL, one line."""
        text = " ".join(self().replace("\0", "").replace("\u2028", "").split())
        self.planted[-1] = text
        return text

    def name(self) -> str:
        """Return a payload that is valid as a file name."""
        text = self.line().replace("/", "\\")
        self.planted[-1] = text
        return text


def check(tab: Tab, *, use: bool = True) -> None:
    """Assert that nothing planted is active on the open page, after a reader used all controls."""
    tab.wait_for("document.readyState === 'complete'")
    if use:
        tab.evaluate(_USE)
        tab.evaluate("new Promise((done) => setTimeout(done, 60))")  # lets events finish
    found = tab.evaluate(_FOUND)
    assert found == {"ran": 0, "elements": [], "hidden": False}, found


def shown(tab: Tab, texts: list[str]) -> int:
    """Return how many payloads the page shows as text."""
    fields = "[...document.querySelectorAll('input, textarea')].map((one) => one.value).join(' ')"
    text = " ".join(str(tab.evaluate(f"document.documentElement.textContent + {fields}")).split())
    return sum(one.split(maxsplit=1)[0] + " " in text for one in texts)


_NEGLECT = "neglect_context"


def _report(folder: Path, plant: Planter) -> Path:
    data = {"dataset": plant.line(), "context": plant(), "question": plant()}
    options = [plant(), plant()]
    rows = {"id": plant.line(), "options": options, "gold": [options[0]], **data}
    habit, paths = plant(), []
    for right in (True, False):
        of_run = [choice(0, right, **rows, answer=[options[not right]], output=plant())]
        of_run += [story(n, "conflict", "garage" if right else habit, habit=habit, output=plant()) for n in (1, 2)]
        of_run += [story(n, "aligned", "garage", habit="garage", context=habit) for n in (3, 4)]
        environment = {plant.line(): plant()}
        paths.append(
            make_run(
                folder / plant.name(), of_run, bench="mini", recipe=plant(), model=plant.line(),
                environment=environment, history=[{"step": n, "loss": 1.0 / n, "ce": 1.0} for n in (1, 2)],
            )
        )  # fmt: skip
    wrong = [
        {"dataset": p.dataset, "id": p.id, "output_sha256": output_digest(p), "pattern": _NEGLECT, "reason": plant()}
        for p in of_run[:3]
    ]
    written = {"judge": {"backend": "openai", "model": plant.line()}, "estimated_by_rule": False, "errors": wrong}
    write_json(paths[1] / "eval/mini/error_patterns.json", with_checksums(written))
    write_report(load_runs(paths), folder / "report.html")
    return folder / "report.html"


def _errors(folder: Path, plant: Planter) -> Path:
    dataset, texts = plant.line(), {"context": plant(), "question": plant()}
    rows = [prediction(n, False, dataset=dataset, output=plant(), answer=[plant()], **texts) for n in range(3)]
    [run] = load_runs([make_run(folder / plant.name(), rows)])
    errors = {key: JudgedError(kind, plant()) for key, kind in zip(run.predictions, ErrorPattern, strict=False)}
    without = {key: [plant()] for key in errors}
    return write_error_report(run, RunPatterns(plant(), errors), without, method=plant(), samples=9)[0]


def _sample(plant: Planter, name: str, **changes: object) -> EventSample:
    row = {
        "id": name, "dataset": plant.line(), "split": "test", "relation": "causal", "format": "qa",
        "context": f"{plant()} It rained. {plant()}", "refined_context": "It rained.", "question": plant(),
        "answers": [plant(), plant()], "meta": {"habit": plant()},
    }  # fmt: skip
    return EventSample.model_validate(row | changes)


def _rows_page(folder: Path, plant: Planter) -> Path:
    rows = [_sample(plant, plant.line()) for _ in range(3)]
    options = [plant(), plant()]
    rows.append(_sample(plant, "scq", format="scq", options=options, answers=options[:1], refined_context=plant()))
    write_rows_page(plant.line(), rows, load_prompt_set("default"), folder / "rows.html")
    return folder / "rows.html"


def _diagnosis(folder: Path, plant: Planter) -> Path:
    labels = ["positive", "negative"]
    rows = [_sample(plant, f"n{n}", format="nli", answers=[labels[n % 2]]) for n in range(2)]
    rows += [_sample(plant, "qa", format="qa")]
    found = Diagnosis(plant.line(), diagnose(rows, []), "words", {}, {plant.line(): 1})
    places = dict.fromkeys(("data", "built", "train", "build", "recipe"), plant.line())
    (folder / "diagnosis.html").write_text(found.page(found.advice(places)), encoding="utf-8")
    return folder / "diagnosis.html"


def _inspect(folder: Path, plant: Planter) -> Path:
    """Inspect a model whose vocabulary has payloads as tokens."""
    rows = [_sample(plant, plant.line()) for _ in range(2)]
    save_bench(folder / "bench", rows)
    model = _model_that_says(plant, folder / plant.name(), [answer for row in rows for answer in row.answers])
    assert d2e("inspect", model, "--bench", folder / "bench", "--out", folder / "i.html", "--along", "gold") == 0
    return folder / "i.html"


def _model_that_says(plant: Planter, folder: Path, more: list[str]) -> Path:
    tokenizer, model = tiny_tokenizer(), tiny_model(seed=3)
    tokenizer.add_tokens([*more, *(plant.line() for _ in range(20))])
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _sweep(folder: Path, plant: Planter) -> Path:
    recipe, out = folder / f"{plant.name()}.yaml", folder / "out"
    recipe.write_text("model: {name: tiny}\ndata: {train: train.jsonl}\ntrain: {output_dir: unused}\n")
    ends = str.maketrans("", "", "\\\"',{}[]")  # what ends a value in an axis cannot be in one
    values = ",".join(f'"{text}"' for text in (plant.line().translate(ends) for _ in range(2)))
    (folder / "mini").mkdir()
    spec = SweepSpec(recipe=str(recipe), bench=str(folder / "mini"))
    sweep = plan_sweep(spec, [f"data.train={values}", "d2e.alpha=0.1,1.0"], out, "x")
    for number, point in enumerate(sweep.work):
        make_run(out / point.name, [prediction(n, n >= number, relation="causal") for n in range(4)])
    rows = [{**row, "strength": plant.line()} for row in probed_rows()]
    return write_sweep_page(sweep, collect(sweep), settings(["seed", "way", "strength"], {"way": "sft"}, rows))[1]


def _measures(folder: Path, plant: Planter) -> Path:
    name = plant.line()
    paths = [
        save_result(folder / plant.name(), accuracy([1, 0, right], name=name), model=plant.line(), decoder=plant())
        for right in (0, 1)
    ]
    runs = load_measured(paths)
    assert runs is not None
    write_report(runs, folder / "measures.html", ReportOptions(title=plant.line()))
    return folder / "measures.html"


def _as_html(card: str, page: Path) -> Path:
    """Write a card as HTML without sanitising it; its front matter as it is."""
    _, front_matter, body = re.split(r"^---\n", card, maxsplit=2, flags=re.MULTILINE)
    html = front_matter + markdown.markdown(body, extensions=["tables", "fenced_code"])
    page.write_text(f"<!doctype html><html><head><meta charset=utf-8></head><body>{html}</body></html>", "utf-8")
    return page


def _data_card(folder: Path, plant: Planter) -> Path:
    assert d2e("data", "build", "--datasets", "habit", "--out", folder / "built") == 0
    manifest = read_manifest(folder / "built")
    dataset = manifest["datasets"].pop("habit")
    texts = {"licence": plant.line(), "redistribution": plant.line(), "homepage": plant.line()}
    manifest["datasets"][plant.line()] = {**dataset, **texts, "notes": {plant.line(): plant()}}
    manifest["failures"] = {plant.line(): plant()}
    file = {"name": plant.line(), "url": plant.line(), "commit": plant.line(), "sha256": "0", "checksum": plant()}
    manifest["datasets"][plant.line()] = {**dataset, "files": [{**file, "substitute": plant()}]}
    return _as_html(render_card(manifest), folder / "data_card.html")


def _model_card(folder: Path, plant: Planter) -> Path:
    run = make_trained(folder)
    write_scores(run, plant.name(), prompt_set=plant.line(), setting=plant.line())
    write_manifest(run)
    manifest = run.parents[1] / "data/manifest.json"
    content = json.loads(manifest.read_text())
    made = {**content["datasets"]["made-up"], "licence": plant(), "redistribution": plant(), "homepage": plant.line()}
    manifest.write_text(json.dumps({**content, "datasets": {plant.line(): made}}))
    named = run.rename(run.with_name(plant.name()))
    recipe = named / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("someone/tiny", json.dumps(f"a/{plant.name()}")))
    return _as_html(card_of(named, licence=plant.line()), folder / "model_card.html")


PAGES: tuple[Callable[[Path, Planter], Path], ...] = (
    _report, _errors, _rows_page, _diagnosis, _inspect, _sweep, _measures, _data_card, _model_card,
)  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Tab:
    """A tab in which unescaped content is detected."""
    tab, page = shared_tab(), tmp_path_factory.mktemp("world") / "unescaped.html"
    unescaped = "\n".join(f"<p>{one}</p>" for one in _BEGINNINGS[:12])
    page.write_text(f"<!doctype html><body>{unescaped}", "utf-8")
    tab.open(page.as_uri())
    with pytest.raises(AssertionError, match=r"'ran': [1-9]"):
        check(tab)
    return tab


@attack("scripts in names, rows, answers and recipes, ten pages", "pages", NOTHING, tries=20)
def test_pages(given: Attempt) -> None:
    count, tab = 0, given.world
    for make in PAGES:
        folder = given.folder / make.__name__
        folder.mkdir()
        plant = Planter(given.random)
        tab.open(make(folder, plant).as_uri())
        try:
            check(tab)
        except AssertionError as error:
            raise AssertionError(f"{make.__name__}: {error}") from None
        found = shown(tab, plant.planted)
        assert found >= min(3, len(plant.planted)), f"{make.__name__}: {found} of {len(plant.planted)} on the page"
        count += found
    given.things = count


@attack("scripts in questions and answers of the demo", "pages", NOTHING, tries=8)
def test_demo(given: Attempt) -> None:
    plant = Planter(given.random)
    asked = [Question("qa", plant(), plant(), expected=plant()) for _ in range(2)]
    asked.append(Question("scq", plant(), plant(), options=f"{plant.line()}\n{plant.line()}", instruction=plant()))
    loaded = load_demo_model(
        str(_model_that_says(plant, given.folder / plant.name(), [])), EvalOptions(max_new_tokens=8)
    )
    with running(build_page(loaded, asked, ServeOptions())) as address:
        tab = given.world
        tab.open(f"{address}/")
        tab.wait_for("document.querySelector('#summary dl')")
        check(tab, use=False)
        tab.evaluate("document.querySelector('#ask').click()")
        tab.wait_for("document.querySelector('#summary dl')")
        check(tab, use=False)
        given.things = max(1, shown(tab, plant.planted))
