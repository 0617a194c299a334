"""Web pages that ask a server on their visitor's machine: `d2e serve` and `d2e demo`, without a key."""

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import HTMLResponse
from starlette.routing import Route

from d2e_sft.server.start import ServeOptions
from eval.pages.demo.page import build_page, load_demo_model
from eval.pages.demo.question import OWN_EXAMPLES
from eval.run.options import EvalOptions
from tests.attack.frame import Attempt, attack
from tests.browser import shared_tab
from tests.d2e_sft.server.served import running
from tests.tiny import save_tiny_model

_ASKED = {"messages": [{"role": "user", "content": "What fell?"}], "max_tokens": 6, "temperature": 0}
_TYPED = {
    "fmt": "qa",
    "context": "Hail fell.",
    "question": "What fell?",
    "options": "",
    "expected": "",
    "instruction": "",
}
_BODIES = {
    "/v1/chat/completions": json.dumps({**_ASKED, "context": "Hail fell.", "alpha": 0.5}),
    "/v1/completions": json.dumps({"prompt": "Hail", "max_tokens": 6, "temperature": 0}),
    "/answer": json.dumps({**_TYPED, "example": 0, "alpha": 0.5, "limit": 6}),
}
_JSON = {"Content-Type": "application/json"}


@dataclass
class World:
    """The server of a demo, which has the routes of both, and the status of each of its answers."""

    url: str
    statuses: list[int]

    def post(self, route: str, body: str, headers: dict[str, str]) -> httpx.Response:
        return httpx.post(self.url + route, content=body.encode(), headers=headers, timeout=60)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    model = load_demo_model(
        str(save_tiny_model(tmp_path_factory.mktemp("world") / "tiny")), EvalOptions(max_new_tokens=6)
    )
    page, statuses = build_page(model, OWN_EXAMPLES[:1], ServeOptions()), list[int]()

    async def noted(scope: Any, receive: Any, send: Any) -> None:
        async def told(message: Any) -> None:
            if message["type"] in ("http.response.start", "websocket.close", "websocket.accept"):
                statuses.append(int(message.get("status", 200 if message["type"].endswith("accept") else 403)))
            await send(message)

        await page(scope, receive, told)

    with running(noted) as url:
        yield World(url, statuses)


def _other_name(draw: random.Random) -> str:
    word = "".join(draw.choices("abcdefghij", k=6))
    forms = ("{}.example", "127.0.0.1.{}.example", "localhost.{}", "{}-localhost", "10.1.2.3", "[fd00::1]", "{}:80")
    return draw.choice(forms).format(word) + draw.choice(("", ":8000", ":80", "."))


@attack("other names of the server, origins and types of bodies", "server", "403 or 415; the model is not asked")
def test_names(given: Attempt) -> None:
    host, port = httpx.URL(given.world.url).host, httpx.URL(given.world.url).port
    given.things = 0
    for route, body in _BODIES.items():
        name = _other_name(given.random)
        origins = ("null", f"http://{name}", f"http://{host}:{port + 1}", f"http://{host}:{port}.example", "file://")
        kinds = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "text/json")
        tries = [{**_JSON, "Host": name}, {**_JSON, "Host": name, "Origin": f"http://{name}"}]
        tries += [{**_JSON, "Origin": given.random.choice(origins)}, {"Content-Type": given.random.choice(kinds)}]
        assert given.world.post(route, body, _JSON).status_code == 200
        for headers in tries:
            assert given.world.post(route, body, headers).status_code in (403, 415), headers
            given.things += 1


_PAGE = """<form method=post enctype=text/plain target=frame><input name='BODY'></form><iframe name=frame></iframe>
<script>
const tries = [];
for (const [route, body] of Object.entries(BODIES)) {
  const json = {"Content-Type": "application/json"};
  for (const options of [{}, {mode: "no-cors"}, {headers: json}, {mode: "no-cors", body: new Blob([body])},
                         {credentials: "include", headers: {...json, Authorization: "Bearer x"}}])
    tries.push(fetch(URL_ + route, {method: "POST", body, ...options}).then(reply => reply.text(), () => "")
      .then(text => { window.read = (window.read || "") + text; }));
  navigator.sendBeacon(URL_ + route, body);
  document.forms[0].action = URL_ + route;
  document.forms[0].submit();
}
tries.push(new Promise(end => {
  const socket = new WebSocket(URL_.replace("http", "ws") + "/v1/models");
  socket.onopen = () => { window.read = "open"; end(); };
  socket.onerror = end;
}));
Promise.all(tries).then(() => { window.ended = tries.length + 2 * Object.keys(BODIES).length; });
</script>"""


@attack("a page of another origin in a browser", "server", "it reads nothing; the model is not asked", tries=10)
def test_page(given: Attempt) -> None:
    filled = _PAGE.replace("URL_", json.dumps(given.world.url)).replace("BODIES", json.dumps(_BODIES))
    given.world.statuses.clear()
    with running(Starlette(routes=[Route("/", lambda _: HTMLResponse(filled))])) as elsewhere:
        tab = shared_tab()
        tab.open(elsewhere.replace("127.0.0.1", given.random.choice(("127.0.0.1", "localhost"))) + "/")
        tab.wait_for("window.ended")
        given.things = tab.evaluate("window.ended")
        assert not tab.evaluate("window.read")
        tab.open("about:blank")
    assert given.world.statuses
    assert set(given.world.statuses) <= {403, 415}, given.world.statuses


def _spoiled(body: str, draw: random.Random) -> str:
    """Return a body that some readers of JSON reject, and others accept in different ways."""
    half = f"\\u{draw.randrange(0xD800, 0xE000):04x}"
    key, value = draw.choice(list(json.loads(body).items()))
    faults = [f'"{half}": 1', f'"user": "{half}"', f'"user": ["x", {{"{half}": 1}}]', f'"{key}": {json.dumps(value)}']
    values = ("NaN", "-Infinity", "[" * 10**5, "9" * 5000, "01", '"\x01"')
    faults += [f'"user": {value}' for value in values]
    return (
        f"{body[:-1]}, {draw.choice(faults)}}}"
        if draw.random() < 0.8
        else body.replace("fell", half).replace("Hail", half)
    )


@attack(
    "halves of characters, equal keys, NaN, nesting",
    "server",
    "400 with one message; the requests beside are answered",
)
def test_bodies(given: Attempt) -> None:
    usual = {route: given.world.post(route, body, _JSON) for route, body in _BODIES.items()}
    spoiled = [(route, _spoiled(body, given.random)) for route, body in _BODIES.items() for _ in range(3)]
    with ThreadPoolExecutor(12) as pool:
        bad = [pool.submit(given.world.post, *one, _JSON) for one in spoiled]
        good = {route: pool.submit(given.world.post, route, body, _JSON) for route, body in _BODIES.items()}
    for answer, (_, body) in zip(bad, spoiled, strict=True):
        assert answer.result().status_code == 400, (answer.result().status_code, body[:300])
        assert answer.result().json()["error"]["message"]
    for route, answer in good.items():
        assert _said(answer.result()) == _said(usual[route])
    given.things = len(spoiled)


def _said(response: httpx.Response) -> Any:
    """The answer without its identifier and time."""
    assert response.status_code == 200, response.text
    last = json.loads(response.text.strip().split("\n")[-1])
    return last.get("choices", last)
