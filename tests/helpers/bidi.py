"""Chromium and Firefox through WebDriver BiDi, which both speak: the same test drives both.

    from tests.helpers import bidi
    tab = bidi.tab  # the fixture

Firefox listens itself, so that it needs no driver; Chromium needs chromedriver. The client of the
socket comes with selenium. Without the browsers tests are skipped with the reason; with
SCATLAS_REQUIRE_BROWSER they fail.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PATIENCE = 60  # seconds, on a busy machine
READY = "document.documentElement.dataset.ready"  # of pages of scatlas
_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # CI runs as root in a container
    "--enable-unsafe-swiftshader",  # the page finds out by itself that there is no graphics card
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # A self-contained page makes no requests.
    "--host-resolver-rules=MAP * ~NOTFOUND",
)
# No network: a proxy that does not exist, and no calls home.
_PREFERENCES = {
    "network.proxy.type": 1,
    "network.proxy.socks": "127.0.0.1",
    "network.proxy.socks_port": 9,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "browser.shell.checkDefaultBrowser": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "toolkit.telemetry.enabled": False,
    "app.update.enabled": False,
    "remote.prefs.recommended": True,
    "browser.download.start_downloads_in_tmp_dir": True,
    "browser.download.always_ask_before_handling_new_types": False,
    "browser.download.alwaysOpenPanel": False,
}


class Tab:
    """A tab of a browser."""

    def __init__(self, name: str, address: str) -> None:
        from websocket import create_connection

        self.name = name
        self._socket = create_connection(address, timeout=_PATIENCE, suppress_origin=True)
        self._number = 0
        self.errors: list[str] = []

    def start(self, *, new_session: bool) -> None:
        if new_session:
            self.call("session.new", capabilities={})
        tree = self.call("browsingContext.getTree")
        self._tab = tree["contexts"][0]["context"]
        self.call("session.subscribe", events=["log.entryAdded"])

    def come_to_front(self) -> None:
        """Go on in a new tab in front: in Firefox's first one keys press no buttons."""
        self._tab = self.call("browsingContext.create", type="tab")["context"]
        self.call("browsingContext.activate", context=self._tab)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its result; note errors of the console on the way."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            answer = json.loads(self._socket.recv())
            if answer.get("method") == "log.entryAdded":
                entry = answer["params"]
                if entry["level"] == "error":
                    self.errors.append(entry["text"])
            elif answer.get("id") == self._number:
                assert answer["type"] == "success", answer
                return answer["result"]

    def close(self) -> None:
        self._socket.close()

    def open(self, address: str) -> None:
        """Open an address and wait until the page has been read."""
        self.errors.clear()
        self.call("browsingContext.navigate", context=self._tab, url="about:blank", wait="complete")
        self.call("browsingContext.navigate", context=self._tab, url=address, wait="complete")

    def show(self, page: Path, query: str = "") -> None:
        """Open a file, and wait until its scripts are ready."""
        self.open(page.as_uri() + query)
        self.wait(READY)

    def text(self, selector: str) -> str:
        return self.run(f"return document.querySelector({selector!r}).textContent")

    def assert_without_network(self) -> None:
        """The page has asked nobody for anything, and may not."""
        assert look(self).fetched == self.errors == []
        answer = "then(() => 'fetched', (error) => 'refused')"
        assert self.run(f"return fetch('http://127.0.0.1:9/').{answer}") == "refused"

    def run(self, body: str) -> Any:
        """Run an asynchronous function's body in the page; its value travels as JSON."""
        source = f"(async () => JSON.stringify((await (async () => {{{body}}})()) ?? null))()"
        result = self.call(
            "script.evaluate", expression=source, target={"context": self._tab}, awaitPromise=True
        )
        assert result["type"] == "success", result["exceptionDetails"]["text"]
        return json.loads(result["result"]["value"])

    def wait(self, condition: str, seconds: float = _PATIENCE) -> Any:
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while not (found := self.run(f"return Boolean({condition})")):
            assert time.monotonic() < end, f"{self.name} waits for: {condition}"
            time.sleep(0.05)
        return found

    def assert_no_injected_script_runs(self) -> None:
        """Scripts that the page's data could bring in: as an attribute, and as an element."""
        self.run(
            """
            const image = "<img src=x onerror='window.hacked = 2'>";
            document.body.insertAdjacentHTML("beforeend", image);
            const script = document.createElement("script");
            script.textContent = "window.hacked = 3";
            document.body.append(script);
            await new Promise((done) => setTimeout(done, 100));
            """
        )
        assert self.run("return window.hacked ?? null") is None

    def resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height}
        self.call("browsingContext.setViewport", context=self._tab, viewport=size)

    def drag(self, path: list[tuple[float, float]], *, kind: str = "mouse") -> None:
        """Press at the first place of the window, move through the others, release at the last."""
        (x, y), *others = [(round(x), round(y)) for x, y in path]
        moves = [{"type": "pointerMove", "x": x, "y": y, "duration": 30} for x, y in others]
        steps = [
            {"type": "pointerMove", "x": x, "y": y},
            {"type": "pointerDown", "button": 0},
            *moves,
            {"type": "pointerUp", "button": 0},
        ]
        source = {"type": "pointer", "id": kind, "parameters": {"pointerType": kind}}
        self._act([{**source, "actions": steps}])

    def wheel(self, x: float, y: float, lines: int) -> None:
        """Turn the wheel at a place; negative: away from the reader."""
        step = {"type": "scroll", "x": round(x), "y": round(y), "deltaX": 0, "deltaY": lines}
        self._act([{"type": "wheel", "id": "wheel", "actions": [step]}])

    def move(self, x: float, y: float) -> None:
        steps = [{"type": "pointerMove", "x": round(x) + i, "y": round(y)} for i in (3, 0)]
        self._act([{"type": "pointer", "id": "mouse", "actions": steps}])

    def click(self, selector: str) -> None:
        """Click the middle of the first element of a selector."""
        x, y = self.run(
            f"const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({ block: 'center' });"
            "const box = e.getBoundingClientRect();"
            "return [box.left + box.width / 2, box.top + box.height / 2];"
        )
        self.drag([(x, y)])

    def keys(self, text: str) -> None:
        """Press keys, one after the other."""
        steps = [{"type": kind, "value": key} for key in text for kind in ("keyDown", "keyUp")]
        self._act([{"type": "key", "id": "keys", "actions": steps}])

    def _act(self, actions: list[dict[str, Any]]) -> None:
        self.call("input.performActions", context=self._tab, actions=actions)


@dataclass(frozen=True)
class Page:
    """Contents of a page in a browser."""

    figures: dict[str, str]  # id of the figure: its alternative text
    broken: list[str]  # broken images
    tables: dict[str, int]  # id of the table: rows of its body
    untitled: list[str]  # tables without a caption
    fetched: list[str]  # requests of the page
    is_wide: bool  # the page itself scrolls sideways


_LOOK = """
const images = [...document.querySelectorAll('img')];
const tables = [...document.querySelectorAll('table')];
const named = e => e.closest('[id]') ? e.closest('[id]').id : '';
const region = e => e.closest('.table') ? e.closest('.table').id : named(e);
return {
  figures: Object.fromEntries(images.map(i => [named(i), i.alt])),
  broken: images.filter(i => !i.complete || !i.naturalWidth).map(i => i.alt || i.src.slice(0, 80)),
  tables: Object.fromEntries(tables.map(t => [region(t), t.tBodies[0].rows.length])),
  untitled: tables.filter(t => !t.caption || !t.caption.innerText.trim()).map(region),
  fetched: performance.getEntriesByType('resource').map(e => e.name)
    .filter(name => !name.startsWith('data:')),
  is_wide: document.documentElement.scrollWidth > document.documentElement.clientWidth,
};
"""


def look(tab: Tab) -> Page:
    """Contents of the open page."""
    return Page(**tab.run(_LOOK))


@contextmanager
def firefox(folder: Path) -> Iterator[Tab]:
    """Headless Firefox without network."""
    program = _find("firefox-esr", "firefox")
    lines = [f"user_pref({json.dumps(k)}, {json.dumps(v)});" for k, v in _PREFERENCES.items()]
    (folder / "user.js").write_text("\n".join(lines))
    command = [program, "--headless", "--no-remote", "--profile", str(folder)]
    log = folder / "log.txt"
    with log.open("w") as out:
        process = subprocess.Popen(
            [*command, "--remote-debugging-port", "0"], stdout=out, stderr=out
        )
    try:
        tab = Tab("Firefox", f"{_address_in(log, process)}/session")
        tab.start(new_session=True)
        yield tab
        tab.close()
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _address_in(log: Path, process: subprocess.Popen[bytes]) -> str:
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end and process.poll() is None:
        if found := re.search(r"BiDi listening on (ws://\S+)", log.read_text()):
            return found[1]
        time.sleep(0.1)
    raise AssertionError(f"Firefox did not start: {log.read_text()}")


@contextmanager
def chromium(folder: Path) -> Iterator[Tab]:
    """Headless Chromium without network."""
    program = _find("chromium", "google-chrome")
    driver_program = _find("chromedriver")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (*_FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    options.set_capability("webSocketUrl", True)
    service = webdriver.ChromeService(executable_path=driver_program)
    driver = webdriver.Chrome(options=options, service=service)
    try:
        tab = Tab("Chromium", driver.capabilities["webSocketUrl"])
        tab.start(new_session=False)
        yield tab
        tab.close()
    finally:
        driver.quit()


# `make test` opens pages in Chromium, `make test-weekly` in Firefox, and both with `in_both`.
BROWSERS = [
    pytest.param(chromium, id="chromium"),
    pytest.param(firefox, id="firefox", marks=pytest.mark.weekly),
]
in_both = pytest.mark.parametrize(
    "tab", [chromium, firefox], ids=["chromium", "firefox"], indirect=True, scope="module"
)


@pytest.fixture(scope="module", params=BROWSERS)
def tab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with request.param(tmp_path_factory.mktemp("profile")) as made:
        made.come_to_front()
        made.resize(1200, 800)
        yield made


def _find(*names: str) -> str:
    for name in names:
        if found := shutil.which(name):
            return found
    reason = f"needs {names[0]} on PATH"
    if os.environ.get("SCATLAS_REQUIRE_BROWSER"):
        pytest.fail(reason)
    pytest.skip(reason)
