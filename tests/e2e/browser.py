"""A headless Chromium, driven through its debugging pipe. Standard library only.

    with Browser() as browser:
        page = browser.open("http://127.0.0.1:1/", width=1200, height=900, dark=True)
        page.wait_for("document.title !== ''")
        page.picture("page.png")
        assert page.complaints == []
"""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

PROGRAM = shutil.which("chromium")


class Browser:
    def __enter__(self):
        self.profile = tempfile.mkdtemp(prefix="starling-browser-")
        command_out, self._write = os.pipe()
        self._read, answer_in = os.pipe()

        def take_pipe():  # the browser reads commands from 3 and writes answers to 4
            out, answer = os.dup(command_out), os.dup(answer_in)
            os.dup2(out, 3)
            os.dup2(answer, 4)

        self.process = subprocess.Popen(
            [
                PROGRAM,
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--hide-scrollbars",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                f"--user-data-dir={self.profile}",
                "--remote-debugging-pipe",
                "about:blank",
            ],
            preexec_fn=take_pipe,
            close_fds=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(command_out)
        os.close(answer_in)
        self._buffer, self._last, self.pages = b"", 0, {}
        return self

    def __exit__(self, kind, error, trace):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self._read)
        os.close(self._write)
        shutil.rmtree(self.profile, ignore_errors=True)

    def open(self, url, width=1200, height=900, dark=False, phone=False):
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})[
            "sessionId"
        ]
        page = self.pages[session] = Page(self, session)
        for domain in ("Runtime", "Log", "Page", "Network"):
            page.call(f"{domain}.enable")
        page.call(
            "Emulation.setDeviceMetricsOverride",
            {
                "width": width,
                "height": height,
                "deviceScaleFactor": 2 if phone else 1,
                "mobile": phone,
            },
        )
        page.call(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]},
        )
        page.call("Page.navigate", {"url": url})
        return page

    def call(self, method, parameters=None, session=None, timeout=120):
        """The command's result; events that arrive meanwhile go to their pages."""
        self._last += 1
        number = self._last
        command = {"id": number, "method": method, "params": parameters or {}}
        if session:
            command["sessionId"] = session
        os.write(self._write, json.dumps(command).encode() + b"\0")
        deadline = time.monotonic() + timeout
        while True:
            message = self._next(deadline)
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return message["result"]
            if message.get("sessionId") in self.pages:
                self.pages[message["sessionId"]].take(message)

    def _next(self, deadline):
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser does not answer")
            more = os.read(self._read, 1 << 16)
            if not more:
                raise RuntimeError(f"the browser ended with status {self.process.wait()}")
            self._buffer += more
        text, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(text)


class Page:
    """`complaints`: errors and warnings of its console, exceptions, and failed requests.
    `requests`: the URLs that it requested."""

    def __init__(self, browser, session):
        self.browser, self.session = browser, session
        self.complaints, self.requests = [], []

    def call(self, method, parameters=None):
        return self.browser.call(method, parameters, self.session)

    def take(self, message):
        method, said = message["method"], message["params"]
        if method == "Runtime.exceptionThrown":
            details = said["exceptionDetails"]
            self.complaints.append(
                details.get("exception", {}).get("description") or details["text"]
            )
        elif method == "Runtime.consoleAPICalled" and said["type"] in (
            "error",
            "warning",
            "assert",
        ):
            self.complaints.append(
                " ".join(str(a.get("value", a.get("description"))) for a in said["args"])
            )
        elif method == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{said['entry']['text']} {said['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])

    def evaluate(self, expression):
        """The value of a JavaScript expression. The page's own policy does not block it."""
        result = self.call("Runtime.evaluate", {"expression": expression, "returnByValue": True})
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait_for(self, expression, timeout=120):
        """Waits until the expression is true; returns its value."""
        deadline = time.monotonic() + timeout
        while not (value := self.evaluate(expression)):
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"waited {timeout} s for {expression}; the page said {self.complaints}"
                )
            time.sleep(0.1)
        return value

    def picture(self, path, full=True):
        """A PNG of the whole page or of the visible part."""
        data = self.call(
            "Page.captureScreenshot", {"format": "png", "captureBeyondViewport": full}
        )["data"]
        Path(path).write_bytes(base64.b64decode(data))
