"""Keys and tokens in the environment, in addresses and in recipes must not appear in files or messages."""

import gzip
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from unittest import mock

import pytest

from data_builders.raw.files import fetch
from data_builders.raw.source import RawFile
from tests.attack.frame import Attempt, attack
from tests.command import d2e, train
from tests.factories import make_world, write_recipe
from tests.judge_server import JudgeServer, Misbehave
from tests.servers import LocalServer, QuietHandler

NOWHERE = "in no file or message, and only in requests to its own host"

VARIABLES = {"HF_TOKEN": "hf_", "OPENAI_API_KEY": "sk-", "WANDB_API_KEY": "", "JUDGE_KEY": "sk-judge-"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world(tmp_path_factory.mktemp("world"), train=4, bench=6, seed=3)


def _recipe(given: Attempt, *overrides: str) -> Path:
    """Write a recipe outside the folder that is searched, since what it holds is the user's own doing."""
    out = f"train.output_dir={given.folder / 'run'}"
    recipe = given.folder.with_name(f"{given.folder.name}-recipe")
    return write_recipe(given.world, recipe, out, "train.max_steps=1", *overrides)


@contextmanager
def _planted(given: Attempt) -> Iterator[tuple[Mapping[str, str], JudgeServer, ExitStack]]:
    """New secrets in the environment, an endpoint, and the stack that undoes both."""
    secrets = {name: f"{begin}{given.random.getrandbits(128):032x}" for name, begin in VARIABLES.items()}
    own = {"D2E_CACHE": str(given.folder / "cache"), "NO_PROXY": "127.0.0.1"}
    with mock.patch.dict(os.environ, {**secrets, **own}), JudgeServer() as server, ExitStack() as stack:
        yield secrets, server, stack


class _Session:
    """Runs commands with secrets in the environment, and keeps their output."""

    def __init__(self, given: Attempt, secrets: Mapping[str, str], server: JudgeServer) -> None:
        self.given, self.secrets, self.server = given, secrets, server
        self.printed = StringIO()
        self.count = 0

    def run(self, *arguments: str | Path, status: int = 0) -> None:
        with redirect_stdout(self.printed), redirect_stderr(self.printed):
            ended = d2e(*arguments)
        assert ended == status, f"{arguments}: status {ended}\n{self.printed.getvalue()[-2000:]}"
        self.count += 1

    def check(self) -> None:
        """Assert that no secret is in the output or in a file."""
        contents = {"what was printed": self.printed.getvalue().encode()}
        contents |= {str(file): file.read_bytes() for file in self.given.folder.rglob("*") if file.is_file()}
        assert len(contents) > 20
        for name, content in contents.items():
            whole = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
            for variable, secret in self.secrets.items():
                at = whole.find(secret.encode())
                assert at < 0, f"{variable} in {name}: …{whole[max(0, at - 120) : at + 8]!r}…"


@attack("keys around build, training, evaluation, judge, report, export", "secrets", NOWHERE, tries=10)
def test_everything_written(given: Attempt) -> None:
    with _planted(given) as (secrets, server, _):
        session = _Session(given, secrets, server)
        folder, key = given.folder, secrets["JUDGE_KEY"]
        session.run("data", "build", "--datasets", "habit", "--out", folder / "data")
        ended = train(folder, [_recipe(given)], environment=secrets)  # it keeps what it prints in the folder
        assert ended.status == 0, ended.printed
        asked = ["--base-url", server.url, "--key-env", "JUDGE_KEY", "--concurrency", "1"]
        server.reply = lambda _: f"The answer is: {key}"
        bench = ["--bench", given.world / "bench"]
        session.run("eval", "remote", *bench, "--out", folder / "remote", *asked)
        session.run("eval", folder / "run", *bench, "--max-new-tokens", "4")
        server.reply = lambda _: f"As {key} says.\nError: other"
        judge = ["--judge", "openai", "--judge-model", "m", "--judge-url", server.url, "--judge-key-env", "JUDGE_KEY"]
        server.plan = [None, Misbehave(status=400, body=f'{{"error": "{key} is no good"}}'.encode())]
        session.run("errors", folder / "remote", *judge, "--judge-concurrency", "1", status=1)
        session.run("errors", folder / "remote", *judge)
        assert f"Bearer {key}" in server.keys, "the endpoint got the key"
        session.run("report", folder / "remote", folder / "run", "--out", folder / "report.html")
        session.run("export", folder / "run", folder / "export")
        session.check()
        given.things = session.count + 1


@attack("keys in recipes, addresses, names and options", "secrets", NOWHERE, tries=10)
def test_misplaced(given: Attempt) -> None:
    with _planted(given) as (secrets, server, stack):
        session = _Session(given, secrets, server)
        key, address = secrets["JUDGE_KEY"], server.url.removeprefix("http://")
        model, bench = given.world / "model", ["--bench", given.world / "bench"]
        for name in ("hub_token", "wandb_api_key", "password"):
            session.run("train", _recipe(given, f"train.{name}={key}"), status=1)
            session.run("train", _recipe(given), f"train.{name}={key}", status=1)
        for url in (f"http://user:{key}@{address}", f"http://{address}?key={key}", f"htp://{key}@{address}"):
            session.run("eval", "remote", *bench, "--out", given.folder / "r", "--base-url", url, status=1)
        session.run("eval", "remote", *bench, "--base-url", server.url, "--key-env", key, status=1)
        session.run("eval", "remote", *bench, "--base-url", server.url, "--key-env", secrets["HF_TOKEN"], status=1)
        session.run("data", "show", given.folder / key, status=1)
        session.run("inspect", model, *bench, "--sample", key, status=1)
        stack.enter_context(mock.patch.dict(os.environ, {"MLFLOW_TRACKING_URI": f"http://user:{key}@127.0.0.1:9"}))
        for number in range(20):
            (given.folder / f"{number}.txt").write_text("so that there is something to look through")
        with redirect_stdout(session.printed):
            d2e("doctor")
        session.check()
        given.things = session.count + 1


class _Redirecting(QuietHandler):
    def answer(self) -> None:
        server = self.server
        server.seen.append(str(self.headers))  # type: ignore[attr-defined]
        if server.target:  # type: ignore[attr-defined]
            self.reply(302, headers={"Location": f"{server.target}/file"})  # type: ignore[attr-defined]
        else:
            self.reply(200, b"a row\n" * 20)


class _Server(LocalServer):
    def __init__(self, target: str = "") -> None:
        super().__init__(_Redirecting)
        self.target, self.seen = target, list[str]()


@attack("keys around a download that is redirected", "secrets", NOWHERE, tries=10)
def test_downloads(given: Attempt) -> None:
    with _planted(given) as (secrets, _, stack):
        other = stack.enter_context(_Server())
        first = stack.enter_context(_Server(other.url))
        netrc = given.folder.with_name(f"{given.folder.name}-netrc")
        netrc.write_text(f"machine 127.0.0.1 login me password {secrets['HF_TOKEN']}\n")
        netrc.chmod(0o600)
        stack.enter_context(mock.patch.dict(os.environ, {"NETRC": str(netrc)}))
        path = fetch("set", RawFile("data.txt", f"{first.url}/file"))
        assert path.read_bytes().startswith(b"a row")
        assert len(other.seen) == len(first.seen) == 1
        for headers in (*first.seen, *other.seen):
            assert "authorization" not in headers.lower()
            assert not any(secret in headers for secret in secrets.values())
    given.things = 1
