"""The page of `d2e demo` in a browser: it loads, its controls work, and it asks nobody but its own server."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import httpx
import pytest

from d2e_sft.decoding import Output, generate
from d2e_sft.server.queue import BatchQueue
from d2e_sft.server.start import ServeOptions
from eval.pages.demo.page import Answerer, DemoModel, build_page, find_opening, load_demo_model
from eval.pages.demo.question import OWN_EXAMPLES, Question
from eval.run.options import EvalOptions
from tests.browser import Tab, shared_tab
from tests.d2e_sft.server.served import running
from tests.tiny import save_tiny_model

TOKENS = 12


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> DemoModel:
    folder = save_tiny_model(tmp_path_factory.mktemp("world") / "tiny", seed=3)
    return load_demo_model(str(folder), EvalOptions(max_new_tokens=TOKENS))


@pytest.fixture(scope="module")
def answerer(model: DemoModel) -> Answerer:
    """Answers as the page should, with a model of its own."""
    own = load_demo_model(model.name, EvalOptions(max_new_tokens=TOKENS))
    return Answerer(own, BatchQueue(own.loaded, 9))


@pytest.fixture(scope="module")
def address(model: DemoModel) -> Iterator[str]:
    with running(build_page(model, OWN_EXAMPLES, ServeOptions())) as url:
        yield url


@pytest.fixture
def tab(address: str) -> Iterator[Tab]:
    tab = shared_tab()
    tab.open(f"{address}/")
    tab.wait_for("document.querySelector('#summary dl')")
    yield tab
    tab.open("about:blank")  # a page that stays open would keep its server from closing


def press(tab: Tab) -> None:
    """Press the button, which removes the last answers."""
    tab.evaluate("document.querySelector('#ask').click()")


def answered(tab: Tab) -> list[str]:
    """Press the button; the three answers when they are complete."""
    press(tab)
    tab.wait_for("document.querySelector('#summary dl') && !document.querySelector('#ask').disabled")
    return list(tab.evaluate("['plain', 'debiased', 'imagined'].map(id => document.getElementById(id).textContent)"))


def set_to(tab: Tab, field: str, value: str) -> None:
    """Give a control that is not typed into a value, as its user does."""
    change = (
        f"f.value = {value!r}; for (const e of ['input', 'change']) f.dispatchEvent(new Event(e, {{bubbles: true}}))"
    )
    tab.evaluate(f"(() => {{ const f = document.getElementById('form').{field}; {change} }})()")


def expected(answerer: Answerer, asked: Question, alpha: float = 0.5) -> list[str]:
    said = answerer.answer(asked, alpha, TOKENS)
    return [said.plain, said.debiased, said.imagined]


def test_the_page_opens_with_an_answer(tab: Tab, address: str, model: DemoModel, answerer: Answerer) -> None:
    found = find_opening(model, answerer, OWN_EXAMPLES)
    assert tab.evaluate("document.getElementById('debiased').textContent") == found.answers.debiased
    assert tab.evaluate("document.getElementById('question').value") == OWN_EXAMPLES[found.place].question
    assert found.told in tab.text()
    assert answered(tab) == expected(answerer, OWN_EXAMPLES[found.place])
    assert "Expected: the power failed" in tab.text()
    assert tab.complaints == []
    asked = {url.removeprefix(address) for url in tab.requested if not url.startswith("data:")}
    assert asked == {"/", "/answer"}


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Decoding that ends only when it is given up; set once it is."""
    ended = threading.Event()

    def decode(model: object, tokenizer: object, *_: object, **__: object) -> Iterator[Output]:
        output = Output(1, tokenizer)
        while not output.cancelled:
            ended.wait(0.05)
            output.tokens.append(70)
            yield output
        ended.set()

    monkeypatch.setattr("d2e_sft.server.queue.generate", decode)
    yield ended
    ended.set()


def test_stop_ends_the_decoding_and_the_next_question_is_answered(
    tab: Tab, answerer: Answerer, endless: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_to(tab, "limit", "512")
    press(tab)
    tab.wait_for("document.getElementById('debiased').textContent.length > 2")
    tab.evaluate("document.getElementById('stop').click()")
    assert endless.wait(20)
    monkeypatch.setattr("d2e_sft.server.queue.generate", generate)
    set_to(tab, "limit", str(TOKENS))
    tab.wait_for("document.getElementById('stop').hidden")
    assert answered(tab) == expected(answerer, OWN_EXAMPLES[0])


def test_leaving_the_page_ends_the_decoding(tab: Tab, endless: threading.Event) -> None:
    set_to(tab, "limit", "512")
    press(tab)
    tab.wait_for("document.getElementById('debiased').textContent.length > 2")
    tab.open("about:blank")
    assert endless.wait(20)


def test_the_pages_server_has_the_routes_of_serve_and_refuses_others(address: str, model: DemoModel) -> None:
    listed = httpx.get(f"{address}/v1/models").json()
    assert [one["id"] for one in listed["data"]] == [model.name]
    kind = {"Content-Type": "application/json"}
    for body in (b'"{"', b"{}", b"[1]", b""):
        refused = httpx.post(f"{address}/answer", content=body, headers=kind)
        assert (refused.status_code, "not the page's form" in refused.text) == (400, True)
    for others in ({}, {**kind, "Origin": "null"}, {**kind, "Origin": "http://localhost:1"}, {"Host": "evil.example"}):
        assert httpx.post(f"{address}/answer", content=b"{}", headers=others).status_code in (403, 415)


def test_all_that_is_typed_and_chosen_changes_the_answers(tab: Tab, answerer: Answerer) -> None:
    tab.evaluate("document.querySelector('details').open = true")
    typed = {"context": "Hail fell.", "question": "What fell?", "expected": "hail", "instruction": "Answer in French."}
    for field, text in typed.items():
        tab.type_into(f"#{field}", text)
    set_to(tab, "alpha", "1.2")
    asked = Question("qa", "Hail fell.", "What fell?", instruction="Answer in French.")
    assert answered(tab) == expected(answerer, asked, 1.2) != expected(answerer, asked)
    assert "Debiased, α = 1.2" in tab.text()
    assert "Expected: hail" in tab.text()
    tab.type_into("#expected", "")
    assert not tab.evaluate("document.getElementById('options').checkVisibility()")
    tab.evaluate("document.querySelector('#format input[value=scq]').click()")
    tab.type_into("#options", "Hail\nIt was Monday")
    choice = Question("scq", "Hail fell.", "What fell?", "Hail\nIt was Monday", instruction="Answer in French.")
    assert answered(tab) == expected(answerer, choice, 1.2)
    tab.evaluate("document.querySelector('#format input[value=nli]').click()")
    assert "Hypothesis" in tab.text()
