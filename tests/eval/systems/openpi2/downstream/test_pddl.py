"""Planning from text: the files of a reply, and the planner's verdict on hand-written ones."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from d2e_sft.util.errors import UserError
from eval.run.task import Conversation
from eval.systems.openpi2.downstream import pddl
from eval.systems.openpi2.downstream.pddl import OWN_PROCEDURES, Written, parse_pddl, pddl_result, read_tasks
from eval.systems.openpi2.downstream.planner import Planner, Verdict, make_planner
from tests.eval.systems.files import save
from tests.eval.systems.openpi2.procedures import rescored, run

DOMAIN = """(define (domain tea)
  (:requirements :strips :typing :negative-preconditions)
  (:types kettle pot)
  (:predicates (full ?k - kettle) (hot ?k - kettle) (leaves ?p - pot) (brewed ?p - pot))
  (:action fill :parameters (?k - kettle) :precondition (not (full ?k)) :effect (full ?k)) ; a smile :)
  (:action heat :parameters (?k - kettle) :precondition (full ?k) :effect (hot ?k))
  (:action pour :parameters (?k - kettle ?p - pot) :precondition (and (hot ?k) (leaves ?p))
    :effect (and (brewed ?p) (not (full ?k)))))"""


def written(domain: str, problem: str) -> Written:
    return Written(domain=domain, problem=problem)


def problem(init: str, goal: str) -> str:
    return f"(define (problem p) (:domain tea) (:objects k - kettle p - pot) (:init {init}) (:goal {goal}))"


@pytest.fixture(scope="module")
def planner() -> Planner:
    pytest.importorskip("unified_planning", reason="the extra planning is not installed")
    pytest.importorskip("up_fast_downward", reason="the extra planning is not installed")
    return make_planner(20)


@pytest.mark.parametrize(
    ("init", "verdict"),
    [
        ("(leaves p)", Verdict("solvable", "fill(k); heat(k); pour(k, p)", 3)),
        ("(brewed p)", Verdict("solvable", "", 0)),  # it holds already
        ("", Verdict("unsolvable")),  # the paper's example: nothing brings leaves into the pot
    ],
)
def test_a_plan_makes_it_solvable(planner: Planner, init: str, verdict: Verdict) -> None:
    assert planner(DOMAIN, problem(init, "(brewed p)")) == verdict


@pytest.mark.parametrize(
    ("domain", "task", "why"),
    [
        (DOMAIN, problem("(leaves p)", "(drunk p)"), "drunk"),
        (DOMAIN, problem("(leaves p)", "(brewed q)"), "q"),
        (DOMAIN, problem("(leaves p k)", "(brewed p)"), "arity"),
        (DOMAIN[:-8], problem("(leaves p)", "(brewed p)"), "Expected"),
        ("(define (domain tea) (actions))", problem("", "(full k)"), "Expected"),
        ("", problem("", "(full k)"), "no domain file"),
        (DOMAIN, "", "no problem file"),
    ],
)
def test_what_cannot_be_read_is_a_parse_error(planner: Planner, domain: str, task: str, why: str) -> None:
    verdict = planner(domain, task)
    assert verdict.outcome == "parse error"
    assert why in verdict.why


def test_out_of_time_is_undecided_and_leaves_nothing_behind(
    planner: Planner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # Lamps are switched two at a time, so never one alone is lit; a planner has to go through all states to know.
    lamps = [f"l{number}" for number in range(26)]
    switch = "(:action {name} :parameters (?a ?b) :precondition (and (other ?a ?b) {before}) :effect (and {after}))"
    lit, dark = "({0} ?a) ({0} ?b)".format("on"), "(not (on ?a)) (not (on ?b))"
    domain = (
        "(define (domain lamps) (:requirements :strips :negative-preconditions) (:predicates (on ?a) (other ?a ?b)) "
        + switch.format(name="light", before=dark, after=lit)
        + switch.format(name="quench", before=lit, after=dark)
        + switch.format(name="swap", before="(on ?a) (not (on ?b))", after="(not (on ?a)) (on ?b)")
        + ")"
    )
    others = " ".join(f"(other {a} {b})" for a in lamps for b in lamps if a != b)
    one = "(on l0) " + " ".join(f"(not (on {lamp}))" for lamp in lamps[1:])
    task = f"(define (problem p) (:domain lamps) (:objects {' '.join(lamps)}) (:init {others}) (:goal (and {one})))"
    assert make_planner(1)(domain, task) == Verdict("undecided", "TIMEOUT")
    assert not list(tmp_path.iterdir())


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "up_fast_downward", None)
    with pytest.raises(UserError, match="needs a planner") as refused:
        make_planner(1)
    assert "d2e-sft[planning]" in str(refused.value)


@pytest.mark.parametrize(
    ("reply", "files"),
    [
        (
            f"Here it is:\n```pddl\n{DOMAIN}\n```\nand\n{problem('', '(full k)')} Done (really).",
            written(DOMAIN, problem("", "(full k)")),
        ),
        ("(DEFINE (Domain x))", written("(DEFINE (Domain x))", "")),
        ("( define ( problem x ) (:init", written("", "( define ( problem x ) (:init")),
        ("I cannot.", written("", "")),
    ],
)
def test_both_files_are_found_in_a_reply(reply: str, files: Written) -> None:
    assert parse_pddl(reply) == files


def test_verdicts_are_counted() -> None:
    verdicts = {"a": Verdict("solvable", "x", 2), "b": Verdict("solvable", "", 0), "c": Verdict("parse error", "|")}
    files = {key: written(key, key) for key in verdicts}
    result = pddl_result(files, lambda domain, _: verdicts[domain])
    assert result.scores["pddl_solvable"] == pytest.approx(2 / 3)
    assert result.scores["pddl"]["plans_without_an_action"] == 1
    assert "| parse error |     1 |" in result.tables[0].markdown()


def test_the_own_tasks_are_asked_and_scored_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pddl, "make_planner", lambda seconds: lambda domain, _: Verdict("solvable", domain, 1))
    result, asker = run(tmp_path, lambda *_: "(define (domain x))", "task=pddl")
    assert len(asker.asked["pddl"]) == 8
    gold = save(tmp_path / "pddl_tasks.json", result.files["pddl_tasks.json"])
    assert read_tasks(gold) == read_tasks(OWN_PROCEDURES)
    again = rescored(tmp_path, result, "pddl.json", gold, "pddl")
    assert again == {key: result.scores[key] for key in again}


def test_planning_tasks_are_told_the_states_that_were_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pddl, "make_planner", lambda seconds: lambda domain, _: Verdict("solvable", domain, 1))

    def answer(name: str, chat: Conversation) -> str:
        if name.startswith("entity-states"):
            return "- heat of kettle was cold before and hot after"
        if name.startswith("salience"):
            return "3"
        return "(define (domain x))"

    result, asker = run(tmp_path, answer, "task=pddl", "entities=all", max_samples=2)
    assert all("heat of kettle" in chat.messages[0]["content"] for chat in asker.asked["pddl"])
    assert result.scores["pddl_solvable"] == 1
    assert len(json.loads(result.files["pddl_tasks.json"])) == 2
    _, asker = run(tmp_path, answer, "task=pddl", "entities=salient", "salient=4", max_samples=2)
    assert not any("heat of kettle" in chat.messages[0]["content"] for chat in asker.asked["pddl"])
    assert any(name.startswith("salience") for name in asker.asked)
