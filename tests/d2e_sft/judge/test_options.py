"""The judge's options, where address and key come from, its templates, and how a verdict is read."""

import sys
from pathlib import Path

import click
import pytest

from d2e_sft.data.prompts import SETTINGS, load_prompt_set
from d2e_sft.judge.judge import make_judge
from d2e_sft.judge.options import JudgeOptions, find_endpoint, judge_options
from d2e_sft.judge.templates import closing_value, load_templates, without_closing
from d2e_sft.util.errors import UserError
from tests.judge_server import KEY
from tests.messages import messages_of
from tests.tiny import make_sample

pytestmark = pytest.mark.usefixtures("judge_environment")


def run(*arguments: str) -> JudgeOptions:
    got: list[JudgeOptions] = []

    @click.command()
    @click.option("--seed", type=int, default=0)
    @judge_options
    def command(*, seed: int, judge: JudgeOptions) -> None:
        """Do something."""
        got.append(judge)

    command.main(args=list(arguments), standalone_mode=False)
    return got[0]


def test_every_option_reaches_its_field() -> None:
    assert run() == JudgeOptions()
    arguments = (
        "--judge openai --judge-model m --judge-url http://h/v1 --judge-key-env K --judge-concurrency 3 "
        "--judge-price 2.5,10 --judge-timeout 9 --judge-attempts 2 --judge-max-tokens 99 --judge-cache kept"
    )
    assert run(*arguments.split()) == JudgeOptions(
        backend="openai",
        model="m",
        base_url="http://h/v1",
        key_env="K",
        concurrency=3,
        prices=(2.5, 10),
        timeout=9,
        attempts=2,
        max_tokens=99,
        cache=Path("kept"),
    )
    assert run("--judge", "openai", "--judge-model", "m", "--judge-temperature", "default").temperature is None
    assert run("--judge", "openai", "--judge-model", "m", "--judge-temperature", "0.7").temperature == 0.7
    assert run("--judge", "local", "--judge-model", "m", "--judge-dtype", "bfloat16").dtype == "bfloat16"


test_message = messages_of(
    __file__,
    {
        arguments: lambda tmp, arguments=arguments: repr(run(*arguments.split()))
        for arguments in (
            "--judge-model m",
            "--judge local --judge-model m --judge-url http://h",
            "--judge openai --judge-model m --judge-dtype float16",
            "--judge openai",
            "--judge openai --judge-model m --judge-temperature=-1",
            "--judge openai --judge-model m --judge-price=-1,2",
            "--judge openai --judge-model m --judge-price=3",
            "--judge openai --judge-model m --judge-price=1,b",
            "--judge openai --judge-model m --judge-max-cost 1",
            "--judge openai --judge-model m --judge-concurrency 0",
            "--judge openai --judge-model m --judge-timeout nan",
            "--judge openai --judge-model m --judge-timeout 1e15",
            "--judge openai --judge-model m --judge-attempts 1000000",
            "--judge openai --judge-model m --judge-concurrency 1000000",
            "--judge local --judge-model m --judge-temperature 0.5",
        )
    },
)


def options(**changes: object) -> JudgeOptions:
    return JudgeOptions.model_validate({"backend": "openai", "model": "m", **changes})


def test_the_option_precedes_the_environment_and_the_environment_openai(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (find_endpoint(options()).url, find_endpoint(options()).key) == ("https://api.openai.com/v1", KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://one:1/v1/")
    assert find_endpoint(options()).url == "http://one:1/v1"
    monkeypatch.setenv("OTHER_KEY", " other\n")
    other = find_endpoint(options(base_url="http://two:2/v1", key_env="OTHER_KEY"))
    assert (other.url, other.key) == ("http://two:2/v1", "other")
    monkeypatch.delenv("OPENAI_API_KEY")
    assert find_endpoint(options(base_url="http://localhost:8000/v1")).key, "one's own server needs none"
    with pytest.raises(UserError, match="variable UNSET_KEY is not set"):
        find_endpoint(options(base_url="http://localhost:8000/v1", key_env="UNSET_KEY"))


def test_a_malformed_key_is_rejected_and_no_key_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert KEY not in repr(find_endpoint(options()))
    monkeypatch.setenv("OPENAI_API_KEY", "secret\nsecret")
    with pytest.raises(UserError, match="characters that no key has") as caught:
        find_endpoint(options())
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8000", "ftp://host/v1", "http://", "http://[::1", "http://host:port/v1",
        "https://me:hunter2@host/v1", "https://host/v1?key=hunter2",
    ],
)  # fmt: skip
def test_a_wrong_address_is_rejected_and_no_password_is_shown(url: str) -> None:
    with pytest.raises(
        UserError, match="expected http:// or https://, a host and a path, without user name"
    ) as caught:
        find_endpoint(options(base_url=url))
    assert "hunter2" not in str(caught.value)


def test_without_the_client_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(UserError, match="needs the package `openai`") as caught:
        make_judge(options())
    assert caught.value.remedy == "pip install 'd2e-sft[judge]'"
    assert make_judge(JudgeOptions()) is None


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        ("Verdict: supported", "supported"),
        ("The text says so.\n\n**Verdict: supported**\n\n", "supported"),
        ("**Verdict:** Supported.", "supported"),
        ("```\nverdict :  SUPPORTED\n```", "supported"),
        ("Verdict: unsupported? No:\nVerdict: supported", "supported"),
        ("Verdict: supported, or unsupported", "supported, or unsupported"),
        ("Verdict: supported (mostly)", "supported (mostly)"),
        ("", None),
        ("supported", None),
        ("Verdict: supported\nI hope that helps.", None),
        ("So my Verdict: supported", None),
        ("Verdict supported", None),
    ],
)
def test_the_whole_value_of_a_closing_line_in_its_form_is_read(reply: str, value: str | None) -> None:
    assert closing_value(reply, "Verdict") == value


def test_the_reasoning_is_what_stands_above() -> None:
    assert without_closing("One.\nTwo.\n\nVerdict: supported\n```\n") == "One.\nTwo."
    assert without_closing("Verdict: supported") == ""


def test_the_skeletons_of_the_paper_tutorial_are_prompts(tmp_path: Path) -> None:
    text = Path("docs/tutorials/paper.md").read_text(encoding="utf-8")
    prompts, judge = (block.partition("```")[0] for block in text.split("```yaml\n")[1:3])
    (tmp_path / "prompts.yaml").write_text(prompts, encoding="utf-8")
    (tmp_path / "judge.yaml").write_text(judge, encoding="utf-8")
    wording = load_prompt_set(str(tmp_path / "prompts.yaml"))
    sample = make_sample(format="nli", context="It rained.", question="It was wet.", answers=["positive"])
    for setting in SETTINGS:
        assert "It was wet." in wording.in_setting(setting).messages(sample, "original")[-1]["content"]
    quality, error = (
        load_templates(Path("none"), job, tmp_path / "judge.yaml") for job in ("quality", "error_pattern")
    )
    assert quality.prompt(sample, "sample", ["positive"]).messages == [
        {"role": "user", "content": "TEXT Premise: It rained.\nQuestion: It was wet.\nAnswer: positive\nTEXT"}
    ]
    assert quality.closed("Because.\nSo, TEXT  wrong.") == "Because.\nVerdict: unsupported"
    assert error.closed("Because.\n**So, text two**") == "Because.\nError: position"
    for other in ("Because.", "TEXT one or TEXT two"):
        assert error.closed(other) == other, "no ending, or two: the judge is asked again"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("quallity: {}", "got 'quallity'; expected some of quality, .* Did you mean 'quality'"),
        ("quality: {task: x}", "quality.*reminder: missing|reminder"),
        ("- x", "not a YAML file of prompts"),
    ],
)
def test_damaged_prompts_are_refused(content: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "judge.yaml").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=problem):
        load_templates(Path("none"), "quality", tmp_path / "judge.yaml")


def test_a_wrong_placeholder_or_a_missing_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "judge.yaml").write_text(
        'quality: {task: "", reminder: x, formats: {qa: {sample: "{Context}"}}}', encoding="utf-8"
    )
    own = load_templates(Path("none"), "quality", tmp_path / "judge.yaml")
    with pytest.raises(UserError, match=r"got \{Context\}; expected some of \{context\}"):
        own.prompt(make_sample(), "sample", ["x"])
    with pytest.raises(UserError, match="no format nli"):
        own.prompt(make_sample(format="nli", answers=["positive"]), "sample", ["positive"])
