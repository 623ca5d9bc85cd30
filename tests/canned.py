"""A real HTTP server that says what it was told to: for replies that no sane API sends."""

import http.server
import json
import threading
from collections.abc import Mapping
from typing import Any

Response = tuple[int, dict[str, str], Any]
"""(status, headers, body as bytes or as what JSON is made of)"""


class Canned:
    """A server that answers with what it was given, byte by byte, and keeps what it was asked."""

    def __init__(self, *responses: Response, by_path: Mapping[str, Response] | None = None) -> None:
        """Answer one after the other, the last of them again and again; or by path."""
        self.responses = list(responses)
        self.by_path = by_path or {}
        self.asked: list[tuple[str, dict[str, str], Any]] = []
        """(path, headers in lower case, parsed body) of each request."""
        canned = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                canned.asked.append((self.path, headers, json.loads(body) if body else None))
                status, extra, payload = canned.respond(self.path)
                sent = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
                self.send_response(status)
                for name, value in {"content-type": "application/json", **extra}.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(sent)))
                self.end_headers()
                self.wfile.write(sent)

            do_GET = do_POST = answer  # noqa: N815

            def log_message(self, *args: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def respond(self, path: str) -> Response:
        if self.by_path:
            return self.by_path[path.partition("?")[0]]
        return self.responses[min(len(self.asked), len(self.responses)) - 1]

    def __enter__(self) -> "Canned":
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()
