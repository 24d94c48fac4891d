"""What tests that drive the page share: a Chromium, a visit that hears every error, and readings."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from urllib.parse import urlencode

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUIET = (
    "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
# Patience for a busy machine, not a tolerance: a page that is ready is not waited for.
expect.set_options(timeout=60_000)
MISSING = (
    "No Chromium was found: run `make browser`, which installs Debian's package as root and "
    "Playwright's own otherwise, or set MESHWRIGHT_CHROMIUM to an executable."
)


def find_chromium(playwright) -> str:
    """Return the path of a Chromium: named, the system's, or Playwright's own; fail if none."""
    wanted = os.environ.get("MESHWRIGHT_CHROMIUM")
    found = [wanted] if wanted else [shutil.which(name) for name in NAMES]
    for path in (*found, playwright.chromium.executable_path):
        if path and Path(path).exists():
            return path
    pytest.fail(MISSING)


class Visit:
    """A page that fails on console errors and on requests off loopback."""

    def __init__(self, chrome, base: str, **options) -> None:
        self.base, self.wrong = base, []
        self.context = chrome.new_context(
            reduced_motion="reduce", viewport={"width": 1280, "height": 800}, **options
        )
        self.context.set_default_timeout(90_000)
        self.context.route("**/*", self._guard)
        self.page = self.context.new_page()
        self.page.on("pageerror", lambda error: self.wrong.append(f"page error: {error}"))
        self.page.on("console", self._heard)

    def _guard(self, route) -> None:
        url = route.request.url
        if url.startswith((self.base, "data:", "blob:")):
            route.continue_()
        else:
            self.wrong.append(f"request off loopback: {url}")
            route.abort()

    def _heard(self, message) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(f"console: {message.text}")

    def go(self, path: str, **query):
        """Open a page by its address and wait until the engine has answered."""
        address = f"{self.base}/#{path}" + (f"?{urlencode(query)}" if query else "")
        if self.page.url.startswith(self.base):
            self.page.evaluate("where => { location.hash = where }", address.split("#", 1)[1])
        else:
            self.page.goto(address)
        expect(self.page.get_by_text("Asking the engine…")).to_have_count(0)
        expect(self.page.get_by_text("Searching layouts…")).to_have_count(0)
        expect(self.page.locator("[aria-busy=true]")).to_have_count(0)
        return self.page


def violations(page) -> list[str]:
    found = Axe().run(page).response["violations"]
    return [f"{v['id']}: {v['nodes'][0]['html'][:160]}" for v in found]


def fact(page, name: str) -> str:
    return page.locator(f'[data-fact="{name}"]').first.inner_text().replace("−", "-")


def leading_number(text: str) -> float:
    return float(re.match(r"-?[\d.]+", text.replace(",", ""))[0])
