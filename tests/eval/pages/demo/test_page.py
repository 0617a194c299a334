"""The page of `d2e demo` in a browser: it loads, its controls work, and it asks nobody but its own server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from d2e_sft.decoding import stream
from d2e_sft.util.errors import UserError
from eval.pages.demo.answering import Answerer, DemoModel, load_demo_model
from eval.pages.demo.page import build_page, import_gradio, launch_options
from eval.pages.demo.question import OWN_EXAMPLES, Question
from eval.pages.demo.summary import find_opening
from eval.run.options import EvalOptions
from tests.browser import Tab, shared_tab
from tests.command import refusal_of
from tests.servers import free_port
from tests.tiny import save_tiny_model

TOKENS = 12


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> DemoModel:
    folder = save_tiny_model(tmp_path_factory.mktemp("world") / "tiny", seed=3)
    return load_demo_model(str(folder), EvalOptions(max_new_tokens=TOKENS))


@pytest.fixture(scope="module")
def address(model: DemoModel) -> Iterator[str]:
    pytest.importorskip("gradio")
    page = build_page(model, OWN_EXAMPLES)
    _, local, _ = page.launch(
        server_name="127.0.0.1", server_port=free_port(), prevent_thread_lock=True, **launch_options(import_gradio())
    )
    yield local
    page.close()


@pytest.fixture
def tab() -> Iterator[Tab]:
    yield shared_tab()
    shared_tab().open("about:blank")  # a page that stays open would keep its server from closing


def opened(tab: Tab, address: str, width: int = 1200) -> Tab:
    tab.open(address, width=width)
    tab.wait_for("document.querySelector('#ask')")
    return tab


def fill(tab: Tab, selector: str, text: str) -> None:
    """Type a text into a field until it stays: on a busy machine Gradio may still be putting its own value there."""
    value = f"document.querySelector({selector!r}).value"
    for _ in range(20):
        tab.type_into(selector, text)
        time.sleep(0.3)
        if tab.evaluate(value) == text:
            return
    raise AssertionError(f"{selector} does not keep {text!r} but has {tab.evaluate(value)!r}")


def forget(tab: Tab) -> None:
    """Mark the answer that the page opened with, which is not the one to wait for."""
    tab.evaluate("document.querySelectorAll('#summary dl').forEach((one) => { one.dataset.old = 1 })")


def answered(tab: Tab) -> list[str]:
    """Press the button, once a page; the three answers when they are complete."""
    forget(tab)
    tab.evaluate("document.querySelector('#ask').click()")
    tab.wait_for("document.querySelector('#summary dl:not([data-old])')")
    fields = "['plain', 'debiased', 'imagined'].map(id => document.querySelector(`#${id} textarea`).value)"
    return list(tab.evaluate(fields))


def expected(model: DemoModel, asked: Question, alpha: float) -> list[str]:
    said = Answerer(model).answer(asked, alpha, TOKENS)
    return [said.plain, said.debiased, said.imagined]


def test_the_page_opens_with_an_answered_example_and_only_its_server_is_contacted(
    tab: Tab, address: str, model: DemoModel
) -> None:
    opened(tab, address)
    found = find_opening(model, Answerer(model), OWN_EXAMPLES)
    tab.wait_for("document.querySelector('#summary dl')")
    shown = [tab.evaluate(f"document.querySelector('#{name} textarea').value") for name in ("plain", "debiased")]
    assert shown == [found.answers.plain, found.answers.debiased]
    assert tab.evaluate("document.querySelector('#question textarea').value") == OWN_EXAMPLES[found.place].question
    assert found.told in tab.text()
    assert answered(tab) == expected(model, OWN_EXAMPLES[0], 0.5)
    assert "Expected: the power failed" in tab.text()
    assert tab.complaints == []
    asked = [url for url in tab.requested if not url.startswith(("data:", "blob:"))]
    assert len(asked) > 5
    assert [url for url in asked if not url.startswith(address)] == []


def test_typed_text_and_the_slider_change_the_answers(tab: Tab, address: str, model: DemoModel) -> None:
    opened(tab, address)
    fill(tab, "#context textarea", "Hail fell.")
    fill(tab, "#question textarea", "What fell?")
    fill(tab, "#alpha input[type=number]", "1.2")
    asked = Question("qa", "Hail fell.", "What fell?")
    assert answered(tab) == expected(model, asked, 1.2) != expected(model, asked, 0.5)
    assert "Debiased, α = 1.2" in tab.text()
    assert "Expected:" not in tab.text(), "the example's answer is none to a question of one's own"
    assert tab.complaints == []


def test_a_format_with_options_shows_their_field(tab: Tab, address: str, model: DemoModel) -> None:
    opened(tab, address)
    assert not tab.evaluate("!!document.querySelector('#options textarea')")
    tab.evaluate("document.querySelector('#format input[value=scq]').click()")
    tab.wait_for("document.querySelector('#options textarea')")
    fill(tab, "#options textarea", "The power failed\nIt was Monday")
    asked = Question("scq", OWN_EXAMPLES[0].context, OWN_EXAMPLES[0].question, "The power failed\nIt was Monday")
    assert answered(tab) == expected(model, asked, 0.5)
    assert tab.complaints == []


def test_an_example_fills_the_form(tab: Tab, address: str, model: DemoModel) -> None:
    opened(tab, address)
    tab.evaluate("document.querySelector('#example input').focus()")
    tab.wait_for("document.querySelectorAll('[role=option]').length == 3")
    tab.evaluate(
        "document.querySelectorAll('[role=option]')[2].dispatchEvent(new MouseEvent('mousedown', {bubbles: true}))"
    )
    tab.wait_for(f"document.querySelector('#question textarea').value == {OWN_EXAMPLES[2].question!r}")
    tab.wait_for("document.querySelector('#options textarea')?.value.startsWith('It broke')")
    assert answered(tab) == expected(model, OWN_EXAMPLES[2], 0.5)
    assert "Expected: It stayed whole" in tab.text()
    assert tab.complaints == []


def test_an_expected_answer_of_ones_own_stays(tab: Tab, address: str) -> None:
    opened(tab, address)
    tab.evaluate("document.querySelector('button.label-wrap').click()")
    tab.wait_for(f"document.querySelector('#expected textarea').value == {OWN_EXAMPLES[0].expected!r}")
    fill(tab, "#expected textarea", "hail")
    fill(tab, "#question textarea", "What fell?")
    answered(tab)
    assert "Expected: hail" in tab.text()


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Decoding that ends only when it is given up; set once it is."""
    ended = threading.Event()

    def decode(*_: object, **__: object) -> Iterator[tuple[int, int]]:
        try:
            while not ended.wait(0.05):
                yield 1, 70
        finally:
            ended.set()

    # Of the test's own monkeypatch, so that what both change is undone in the right order.
    monkeypatch.setattr("eval.pages.demo.answering.stream", decode)
    yield ended
    ended.set()


def test_stop_ends_the_decoding_and_the_next_question_is_answered(
    tab: Tab, address: str, model: DemoModel, endless: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(tab, address)
    tab.evaluate("document.querySelector('#ask').click()")
    tab.wait_for("document.querySelector('#stop')")
    tab.evaluate("document.querySelector('#stop').click()")
    assert endless.wait(20)
    tab.wait_for("!document.querySelector('#stop')")
    monkeypatch.setattr("eval.pages.demo.answering.stream", stream)
    time.sleep(1)  # nobody presses again within milliseconds, while Gradio is still taking the cancelled answer down
    assert answered(tab) == expected(model, OWN_EXAMPLES[0], 0.5)
    assert tab.complaints == []


def test_leaving_the_page_ends_the_decoding(tab: Tab, address: str, endless: threading.Event) -> None:
    opened(tab, address)
    tab.evaluate("document.querySelector('#ask').click()")
    tab.wait_for("document.querySelector('#stop')")
    tab.open("about:blank")
    assert endless.wait(20)


def test_what_is_missing_is_said_on_a_page_no_wider_than_a_phone(tab: Tab, address: str) -> None:
    opened(tab, address, 400)
    answered(tab)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 400
    fill(tab, "#context textarea", " ")
    forget(tab)
    tab.evaluate("document.querySelector('#ask').click()")
    tab.wait_for("document.body.innerText.includes('The context is empty.')")
    assert not tab.evaluate("!!document.querySelector('#summary dl:not([data-old])')")


def test_without_gradio_the_remedy_is_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gradio", None)
    with pytest.raises(UserError, match="Gradio is not usable here"):
        import_gradio()
    assert "pip install 'd2e-sft[demo]'" in refusal_of("demo", "someone/name")
