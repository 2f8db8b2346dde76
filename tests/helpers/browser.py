"""A headless Chromium for tests of pages.

    from tests.helpers import browser as browser_tools
    browser = browser_tools.browser  # the fixture

    @pytest.mark.browser
    def test_page(browser, tmp_path):
        page = browser_tools.look(browser, tmp_path / "report.html")
        assert not page.broken

Needs Chromium and its driver (``apt-get install chromium chromium-driver``); otherwise tests are
skipped with this reason.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FLAGS = (
    "--headless=new",
    "--no-sandbox",  # CI runs as root in a container
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # A self-contained page makes no requests.
    "--host-resolver-rules=MAP * ~NOTFOUND",
)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Selenium driver of headless Chromium without network."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    chromedriver = shutil.which("chromedriver")
    if not chromium or not chromedriver:
        pytest.skip("needs chromium and chromedriver on PATH")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in FLAGS:
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('chromium')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=chromedriver)
    driver = webdriver.Chrome(options=options, service=service)
    driver.set_window_size(1280, 900)
    yield driver
    driver.quit()


@dataclass(frozen=True)
class Page:
    """Contents of a page in a browser."""

    figures: dict[str, str]  # id of the figure: its alternative text
    broken: list[str]  # broken images
    tables: dict[str, int]  # id of the table: rows of its body
    untitled: list[str]  # tables without a caption
    fetched: list[str]  # requests of the page
    errors: list[str]  # messages of the console
    width: int  # width of the content in CSS pixels
    window: int  # width of the view in CSS pixels


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
  width: document.documentElement.scrollWidth,
  window: document.documentElement.clientWidth,
};
"""


def look(browser: Any, page: Path, *, width: int = 1280) -> Page:
    """Open a page in a window of this width and return its contents."""
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 700},
    )
    browser.get(page.resolve().as_uri())
    seen = browser.execute_script(_LOOK)
    log = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    return Page(**seen, errors=log)


def screenshot(browser: Any, path: Path, *, dark: bool = False) -> None:
    """Screenshot of the whole open page."""
    import base64

    theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [theme]})
    shot = browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
    path.write_bytes(base64.b64decode(shot["data"]))
