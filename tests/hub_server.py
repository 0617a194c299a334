"""A small server that speaks the Hub's HTTP calls for pushing and pulling repositories, and keeps what it was sent."""

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import pytest

from tests.servers import LocalServer, QuietHandler

TOKEN = "hf_of_the_tests"
_LARGE = (".parquet", ".safetensors")


class HubServer(LocalServer):
    """`refuse` maps the beginning of a path to the status that its requests get."""

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.refuse: dict[str, int] = {}
        self.requests: list[tuple[str, str]] = []
        self.tokens: set[str | None] = set()
        self.private: dict[str, bool] = {}  # repository → whether it is private
        self.stored: dict[str, bytes] = {}  # sha256 → content, as large files are kept
        self.files: dict[str, dict[str, bytes]] = {}  # repository, or repository@branch → path → content
        self.messages: list[str] = []

    def asked(self, method: str, start: str) -> list[str]:
        """Paths of the requests of a method that begin with `start`."""
        return [path for verb, path in self.requests if verb == method and path.startswith(start)]

    def version(self, repo: str, revision: str) -> dict[str, bytes] | None:
        """The files at a branch or commit; None where there is no such revision."""
        if revision == "main":
            return self.files.get(repo, {}) if repo in self.private else None
        if (branch := f"{repo}@{revision}") in self.files:
            return self.files[branch]
        names = [key for key in self.files if key.partition("@")[0] == repo]
        return next((self.files[key] for key in names if commit_of(self.files[key]) == revision), None)


def commit_of(files: dict[str, bytes]) -> str:
    """A commit's name: 40 hexadecimal digits of its content."""
    return hashlib.sha1(
        repr(sorted((path, _oid(path, content)) for path, content in files.items())).encode()
    ).hexdigest()


@lru_cache
def _oid(path: str, content: bytes) -> str:
    if path.endswith(_LARGE):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class _Handler(QuietHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        body = self._body()
        path = unquote(self.path.partition("?")[0])
        self.server.requests.append((self.command, path))
        if path.startswith(("/api/repos", "/api/datasets", "/datasets", "/api/models")):
            self.server.tokens.add(self.headers.get("Authorization"))
        refused = next((status for start, status in self.server.refuse.items() if path.startswith(start)), None)
        parts = path.strip("/").split("/")
        if refused:
            self._answer(refused, {"error": "refused by the test"})
        elif path == "/api/whoami-v2":
            self._answer(200, {"name": "tester", "type": "user"})
        elif path == "/api/validate-yaml":  # asked before a commit that holds a card
            self._answer(200, {"errors": [], "warnings": []})
        elif path == "/api/repos/create":
            self._create(json.loads(body))
        elif parts[0] == "api" and parts[1] in ("datasets", "models") and len(parts) >= 4:
            self._repository("/".join(parts[2:4]), parts[4:], body)
        elif path.endswith(".git/info/lfs/objects/batch"):
            self._batch(json.loads(body))
        elif parts[0] == "store":
            self._store(parts[1], body)
        elif len(parts) > 4 and parts[2] == "resolve":
            self._resolve("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        else:
            self._answer(404, {"error": f"the stand-in knows no {self.command} {path}"})

    def _repository(self, repo: str, rest: list[str], body: bytes) -> None:
        if repo not in self.server.private:
            return self._answer(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        action, revision = (rest[0], rest[1]) if rest else ("revision", "main")
        if action == "branch":
            return self._branch(repo, revision)
        files = self.server.version(repo, revision)
        if files is None:
            return self._answer(404, {"error": "Invalid rev id"}, {"X-Error-Code": "RevisionNotFound"})
        if action == "revision":
            self._info(repo, files)
        elif action == "tree":
            self._tree(files)
        elif action == "preupload":
            self._preupload(json.loads(body), files)
        elif action == "commit":
            self._commit(repo, files, body)
        return None

    def _store(self, sha256: str, content: bytes) -> None:
        if hashlib.sha256(content).hexdigest() != sha256:
            return self._answer(400, {"error": "not the content of that checksum"})
        self.server.stored[sha256] = content
        return self._answer(200, {})

    def _create(self, asked: dict[str, Any]) -> None:
        repo = f"{asked['organization']}/{asked['name']}"
        kind = asked.get("type", "model")
        url = f"{self.server.url}/{'datasets/' if kind == 'dataset' else ''}{repo}"
        if repo in self.server.private:
            return self._answer(409, {"error": "You already created this repo", "url": url})
        self.server.private[repo] = asked.get("visibility") == "private" or asked.get("private") is True
        return self._answer(200, {"url": url, "name": repo})

    def _branch(self, repo: str, name: str) -> None:
        branch = f"{repo}@{name}"
        if branch in self.server.files:
            return self._answer(409, {"error": "Reference already exists"})
        self.server.files[branch] = dict(self.server.files.get(repo, {}))
        return self._answer(200, {})

    def _info(self, repo: str, files: dict[str, bytes]) -> None:
        siblings = [{"rfilename": path} for path in files]
        content = {"id": repo, "private": self.server.private[repo], "siblings": siblings, "tags": []}
        self._answer(200, {**content, "sha": commit_of(files)})

    def _tree(self, files: dict[str, bytes]) -> None:
        entries = []
        for path, content in files.items():
            entry: dict[str, Any] = {"type": "file", "path": path, "size": len(content), "oid": _oid(path, content)}
            if path.endswith(_LARGE):
                entry["lfs"] = {"oid": _oid(path, content), "size": len(content), "pointerSize": 130}
            entries.append(entry)
        self._answer(200, entries)

    def _preupload(self, asked: dict[str, Any], there: dict[str, bytes]) -> None:
        files = []
        for file in asked["files"]:
            path = file["path"]
            mode = "lfs" if path.endswith(_LARGE) else "regular"
            known = {"oid": _oid(path, there[path])} if path in there else {}
            files.append({"path": path, "uploadMode": mode, "shouldIgnore": False, **known})
        self._answer(200, {"files": files})

    def _batch(self, asked: dict[str, Any]) -> None:
        objects = [
            wanted  # no action: it is there
            if wanted["oid"] in self.server.stored
            else {**wanted, "actions": {"upload": {"href": f"{self.server.url}/store/{wanted['oid']}"}}}
            for wanted in asked["objects"]
        ]
        self._answer(200, {"transfer": "basic", "objects": objects})

    def _commit(self, repo: str, version: dict[str, bytes], body: bytes) -> None:
        key = next((key for key, files in self.server.files.items() if files is version), repo)
        files = self.server.files.setdefault(key, {})
        for line in body.decode().splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "header":
                self.server.messages.append(value["summary"])
            elif entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.server.stored[value["oid"]]
            elif entry["key"] == "deletedFile":
                del files[value["path"]]
        url = f"{self.server.url}/{repo}/commit/{commit_of(files)}"
        self._answer(200, {"commitUrl": url, "commitOid": commit_of(files), "success": True})

    def _resolve(self, repo: str, revision: str, path: str) -> None:
        files = self.server.version(repo, revision)
        if files is None:
            return self._answer(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        if path not in files:
            headers = {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit_of(files)}
            return self._answer(404, {"error": "Entry not found"}, headers)
        headers = {"ETag": f'"{_oid(path, files[path])}"', "X-Repo-Commit": commit_of(files)}
        return self.reply(200, files[path], headers)

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            chunks = []
            while size := int(self.rfile.readline(), 16):
                chunks.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(chunks)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _answer(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        self.reply(status, json.dumps(content).encode(), {**(headers or {}), "Content-Type": "application/json"})


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A running stand-in, and a token for it."""
    with running_hub(monkeypatch) as server:
        yield server


@contextmanager
def running_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """The same for fixtures of a wider scope."""
    with HubServer() as server:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
        monkeypatch.setattr("transformers.utils.hub._hf_api", None)  # keeps the address of its first use
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        # The stand-in speaks the older of the two ways for large files; xet is a store of chunks of its own.
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server
