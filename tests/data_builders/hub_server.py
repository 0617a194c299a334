"""A small server that speaks the Hub's HTTP calls for pushing a dataset, and keeps what it was sent."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_of_the_tests"


class HubServer(ThreadingHTTPServer):
    """`refuse` maps the beginning of a path to the status that its requests get."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.refuse: dict[str, int] = {}
        self.requests: list[tuple[str, str]] = []
        self.tokens: set[str | None] = set()
        self.private: dict[str, bool] = {}  # repository → whether it is private
        self.stored: dict[str, bytes] = {}  # sha256 → content, as large files are kept
        self.files: dict[str, dict[str, bytes]] = {}  # repository → path → content
        self.messages: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> HubServer:
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._handle()

    def do_POST(self) -> None:
        self._handle()

    def do_PUT(self) -> None:
        self._handle()

    def _handle(self) -> None:
        body = self._body()
        path = self.path.partition("?")[0]
        self.server.requests.append((self.command, path))
        if path.startswith(("/api/repos", "/api/datasets", "/datasets")):
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
        elif parts[:2] == ["api", "datasets"] and len(parts) == 4:
            self._info("/".join(parts[2:4]))
        elif parts[:2] == ["api", "datasets"] and parts[4] == "preupload":
            self._preupload(json.loads(body))
        elif parts[:2] == ["api", "datasets"] and parts[4] == "commit":
            self._commit("/".join(parts[2:4]), body)
        elif path.endswith(".git/info/lfs/objects/batch"):
            self._batch(json.loads(body))
        elif parts[0] == "store":
            self._store(parts[1], body)
        else:
            self._answer(404, {"error": f"the stand-in knows no {self.command} {path}"})

    def _store(self, sha256: str, content: bytes) -> None:
        if hashlib.sha256(content).hexdigest() != sha256:
            return self._answer(400, {"error": "not the content of that checksum"})
        self.server.stored[sha256] = content
        return self._answer(200, {})

    def _create(self, asked: dict[str, Any]) -> None:
        repo = f"{asked['organization']}/{asked['name']}"
        assert asked["type"] == "dataset"
        url = f"{self.server.url}/datasets/{repo}"
        if repo in self.server.private:
            return self._answer(409, {"error": "You already created this dataset repo", "url": url})
        self.server.private[repo] = asked.get("visibility") == "private" or asked.get("private") is True
        return self._answer(200, {"url": url, "name": repo})

    def _info(self, repo: str) -> None:
        if repo not in self.server.private:
            return self._answer(404, {"error": "Repository not found"})
        return self._answer(200, {"id": repo, "private": self.server.private[repo], "siblings": [], "tags": []})

    def _preupload(self, asked: dict[str, Any]) -> None:
        files = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["path"].endswith(".parquet") else "regular",
                "shouldIgnore": False,
            }
            for file in asked["files"]
        ]
        self._answer(200, {"files": files})

    def _batch(self, asked: dict[str, Any]) -> None:
        objects = [
            {**wanted, "actions": {"upload": {"href": f"{self.server.url}/store/{wanted['oid']}"}}}
            for wanted in asked["objects"]
        ]
        self._answer(200, {"transfer": "basic", "objects": objects})

    def _commit(self, repo: str, body: bytes) -> None:
        files = self.server.files.setdefault(repo, {})
        for line in body.decode().splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "header":
                self.server.messages.append(value["summary"])
            elif entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.server.stored[value["oid"]]
        url = f"{self.server.url}/datasets/{repo}/commit/{'0' * 40}"
        self._answer(200, {"commitUrl": url, "commitOid": "0" * 40, "success": True})

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            chunks = []
            while size := int(self.rfile.readline(), 16):
                chunks.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(chunks)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass
