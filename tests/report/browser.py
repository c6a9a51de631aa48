"""A real headless Chromium, spoken to through chromedriver's own HTTP interface (W3C WebDriver)."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def browser_path() -> str | None:
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


def missing() -> str | None:
    """Why no browser test can run here, or None."""
    if browser_path() is None:
        return "no Chromium here: apt-get install chromium chromium-driver"
    if shutil.which("chromedriver") is None:
        return "no chromedriver here: apt-get install chromium-driver"
    return None


class Browser:
    """One window."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._root = f"http://127.0.0.1:{port}"
        self._driver = subprocess.Popen(
            ["chromedriver", f"--port={port}", "--log-level=SEVERE"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        options = {
            "binary": browser_path(),
            "args": [
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--hide-scrollbars",
                f"--user-data-dir={folder / 'profile'}",
            ],
        }
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        deadline = time.monotonic() + 60.0
        while True:
            try:
                answer = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
                break
            except (urllib.error.URLError, ConnectionError):
                if time.monotonic() > deadline:
                    self._driver.kill()
                    raise
                time.sleep(0.1)
        self._session = f"/session/{answer['sessionId']}"

    def _call(self, verb: str, path: str, data: dict[str, Any] | None = None) -> Any:
        body = None if data is None else json.dumps(data).encode()
        request = urllib.request.Request(
            self._root + path, body, {"Content-Type": "application/json"}, method=verb
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def open(self, page: Path) -> None:
        self._call("POST", f"{self._session}/url", {"url": page.resolve().as_uri()})

    def run(self, script: str) -> Any:
        """The value of a script's `return`."""
        return self._call("POST", f"{self._session}/execute/sync", {"script": script, "args": []})

    def devtools(self, command: str, **params: Any) -> Any:
        data = {"cmd": command, "params": params}
        return self._call("POST", f"{self._session}/goog/cdp/execute", data)

    def resize(self, width: int, height: int, *, phone: bool = False) -> None:
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=phone,
        )

    def scheme(self, name: str) -> None:
        """What the system prefers: light or dark."""
        self.devtools(
            "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}]
        )

    def console(self) -> list[str]:
        """Everything the page logged, warnings and failed loads included."""
        return [str(e["message"]) for e in self._call("POST", f"{self._session}/se/log", {"type": "browser"})]

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        shot = self.devtools("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        try:
            self._call("DELETE", self._session)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            pass
        finally:
            self._driver.terminate()
            self._driver.wait(10)
