"""A server of the page in a process of its own, as a person starts it."""

from __future__ import annotations

import atexit
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

OPENED = re.compile(r"Open (http://127\.0\.0\.1:(\d+)/([\w-]+)/(0/)?)")


class Served:
    """`qurate open RUN`, until it is killed.

    Args:
        run: The folder; None for the form that starts one.
        *words: Further options.
    """

    def __init__(self, run: Path | None, *words: str) -> None:
        named = [] if run is None else [str(run)]
        command = [sys.executable, "-m", "qurate", "open", *named, "--no-browser", *words]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "COLUMNS": "400"}
        )
        self.said = ""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            if found := OPENED.search(line):
                self.address, self.port, self.token = found[1], int(found[2]), found[3]
                break
        else:
            raise AssertionError(self.said)
        self._reader = threading.Thread(target=self._read, daemon=True)  # so that it never waits for us
        self._reader.start()
        atexit.register(self.process.kill)  # where a test failed before it killed it

    def kill(self) -> None:
        """kill -9."""
        self.process.send_signal(signal.SIGKILL)
        self.end()

    def end(self) -> str:
        """What it said, after it has ended."""
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.said

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.said += self.process.stdout.read()

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers of a request that says exactly this; a path without leading slash is of the page."""
        host = urlsplit(self.address).netloc
        given = {"Host": host, **{name.replace("_", "-"): value for name, value in headers.items()}}
        if body is not None:
            given = {"Origin": f"http://{host}", "Content-Type": "application/json", **given}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        place = path if path.startswith("/") else f"{urlsplit(self.address).path}{path}"
        connection.putrequest(method, place, skip_host=True, skip_accept_encoding=True)
        content = b"" if body is None else json.dumps(body).encode()
        for name, value in {"Content-Length": str(len(content)), **given}.items():
            connection.putheader(name, value)
        connection.endheaders(content)
        answer = connection.getresponse()
        found = answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()}
        connection.close()
        return found
