"""Web pages that ask a server on their visitor's machine: `d2e serve` and `d2e demo`, without a key."""

import json
from collections.abc import Iterator
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
_TYPED = {"fmt": "qa", "context": "Hail fell.", "question": "What fell?", "options": "", "expected": ""}
_BODIES = {
    "/v1/chat/completions": json.dumps({**_ASKED, "context": "Hail fell.", "alpha": 0.5}),
    "/v1/completions": json.dumps({"prompt": "Hail", "max_tokens": 6, "temperature": 0}),
    "/answer": json.dumps({**_TYPED, "instruction": "", "example": 0, "alpha": 0.5, "limit": 6}),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[int]]]:
    """The address of a demo, which has the routes of both servers, and the status of each of its answers."""
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
        for route, body in _BODIES.items():  # a program may ask
            answer = httpx.post(url + route, content=body, headers={"Content-Type": "application/json"}, timeout=60)
            assert answer.status_code == 200, answer.text
        yield url, statuses


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
    url, statuses = given.world
    filled = _PAGE.replace("URL_", json.dumps(url)).replace("BODIES", json.dumps(_BODIES))
    statuses.clear()
    with running(Starlette(routes=[Route("/", lambda _: HTMLResponse(filled))])) as elsewhere:
        tab = shared_tab()
        tab.open(elsewhere.replace("127.0.0.1", given.random.choice(("127.0.0.1", "localhost"))) + "/")
        tab.wait_for("window.ended")
        given.things = tab.evaluate("window.ended")
        assert not tab.evaluate("window.read")
        tab.open("about:blank")
    assert statuses
    assert set(statuses) <= {403, 415}, statuses
