"""As much of the Hugging Face Hub as reading and committing a dataset's files takes, on the loopback interface."""

from __future__ import annotations

import base64
import json
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.support.loopback import LoopbackHandler, LoopbackServer, running


class HubServer(LoopbackServer):
    """Serves ``files`` as those of the dataset ``someone/data``; others, and private ones, are not found."""

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.files: dict[str, bytes] = {}
        self.tokens: list[str] = []
        self.commits = 0

    @property
    def storage_options(self) -> dict[str, Any]:
        return {"endpoint": f"http://{self.host}", "token": "hf_aTokenOfTests"}


def hub_server() -> AbstractContextManager[HubServer]:
    """Run a server in a thread for the length of a block."""
    return running(HubServer())


class _Handler(LoopbackHandler):
    server: HubServer

    def do_GET(self) -> None:
        self.server.tokens.append(self.headers.get("Authorization", ""))
        path = unquote(urlsplit(self.path).path)
        about, tree, file = "/api/datasets/someone/data", "/tree/main", "/datasets/someone/data/resolve/main/"
        if path in (about, f"{about}/revision/main"):
            self._answer({"id": "someone/data", "sha": "a" * 40, "siblings": []})
        elif path.startswith(about + tree):
            self._answer(self._listed(path.removeprefix(about + tree).strip("/")))
        elif path.startswith(file):
            self._send(path.removeprefix(file))
        else:
            self._answer({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self.server.tokens.append(self.headers.get("Authorization", ""))
        body = self.rfile.read(int(self.headers["Content-Length"]))
        path = unquote(urlsplit(self.path).path)
        if path == "/api/datasets/someone/data/preupload/main":
            names = [each["path"] for each in json.loads(body)["files"]]
            modes = [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]
            self._answer({"files": modes})
        elif path == "/api/datasets/someone/data/commit/main":
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    self.server.files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "deletedFile":
                    del self.server.files[value["path"]]
            self.server.commits += 1
            where = f"http://{self.server.host}/datasets/someone/data/commit/{'b' * 40}"
            self._answer({"success": True, "commitOid": "b" * 40, "commitUrl": where})
        else:
            self._answer({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})

    def _listed(self, folder: str) -> list[dict[str, Any]]:
        begin = f"{folder}/" if folder else ""
        found: dict[str, dict[str, Any]] = {}
        for name, content in self.server.files.items():
            if name.startswith(begin):
                first, slash, _ = name[len(begin) :].partition("/")
                kind = {"type": "directory"} if slash else {"type": "file", "size": len(content)}
                found[first] = {"path": begin + first, "oid": "0" * 40, **kind}
        return list(found.values())

    def _send(self, name: str) -> None:
        content = self.server.files.get(name)
        if content is None:
            self._answer({"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound"})
            return
        begin, end, status = self.span(len(content))
        self.send_response(status)
        self.send_header("Content-Length", str(end - begin))
        self.send_header("ETag", '"0"')
        self.send_header("X-Repo-Commit", "a" * 40)
        if status == 206:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content[begin:end])

    def _answer(self, document: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
