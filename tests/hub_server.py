"""A server that stands in for the Hugging Face Hub: it speaks the protocol of the Hub's client, and keeps the files."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

TOKEN = "hf_token_of_the_tests"
# path, SHA-256 of the content, whether it is stored with LFS
Tree = dict[str, tuple[str, bool]]


class HubServer:
    """Repositories with their commits; the content of files is kept in a folder, by its hash."""

    def __init__(self, folder: Path) -> None:
        self.blobs = folder
        self.commits: dict[str, list[tuple[str, Tree]]] = {}
        self.private: set[str] = set()
        self.requests: list[tuple[str, str]] = []
        self.url = ""

    def files(self, repo: str) -> dict[str, bytes]:
        """The files of the newest commit."""
        return {name: (self.blobs / oid).read_bytes() for name, (oid, _) in self.commits[repo][-1][1].items()}

    def keep(self, content: bytes) -> str:
        oid = hashlib.sha256(content).hexdigest()
        (self.blobs / oid).write_bytes(content)
        return oid

    def commit(self, repo: str, tree: Tree) -> str:
        commits = self.commits.setdefault(repo, [])
        oid = hashlib.sha1(json.dumps([repo, len(commits), sorted(tree.items())]).encode()).hexdigest()
        commits.append((oid, tree))
        return oid

    def find(self, repo: str, revision: str) -> tuple[str, Tree] | None:
        commits = self.commits[repo]
        return commits[-1] if revision == "main" else next((each for each in commits if each[0] == revision), None)

    def describe(self, path: str, oid: str, is_lfs: bool) -> dict[str, Any]:
        content = (self.blobs / oid).read_bytes()
        git_oid = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        lfs = {"lfs": {"oid": oid, "size": len(content), "pointerSize": 134}} if is_lfs else {}
        return {"type": "file", "path": path, "oid": git_oid, "size": len(content), **lfs}


@contextmanager
def serve_hub(folder: Path) -> Iterator[HubServer]:
    hub = HubServer(folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path))
        for pattern, answer in self.ROUTES:
            if match := re.fullmatch(pattern, f"{self.command} {path}"):
                answer(self, body, *match.groups())
                return
        self._send(404, {"error": f"no such page: {path}"})

    def _send(self, status: int, content: Any = b"", **headers: str) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    @property
    def _is_logged_in(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _check(self, repo: str, *, write: bool = False) -> bool:
        """Answer with an error unless the repository is there and the client may use it."""
        if write and not self._is_logged_in:
            self._send(401, {"error": "Invalid username or password."})
        elif repo not in self.hub.commits or (repo in self.hub.private and not self._is_logged_in):
            self._send(
                401 if not self._is_logged_in else 404, {"error": "Repository not found"}, X_Error_Code="RepoNotFound"
            )
        else:
            return True
        return False

    def _create(self, body: bytes) -> None:
        request = json.loads(body)
        repo = f"{request['organization']}/{request['name']}"
        if not self._is_logged_in:
            self._send(401, {"error": "Invalid username or password."})
        elif request["organization"] == "others":
            self._send(403, {"error": 'You don\'t have the rights to create a model under the namespace "others"'})
        elif repo in self.hub.commits:
            self._send(409, {"error": "You already created this model repo", "url": f"{self.hub.url}/{repo}"})
        else:
            self.hub.commit(repo, {".gitattributes": (self.hub.keep(b"*.safetensors filter=lfs\n"), False)})
            if request.get("private") or request.get("visibility") == "private":
                self.hub.private.add(repo)
            self._send(200, {"url": f"{self.hub.url}/{repo}", "name": repo})

    def _validate(self, body: bytes) -> None:
        text = json.loads(body)["content"]
        try:
            metadata = yaml.safe_load(text.split("---")[1])
            errors = [] if isinstance(metadata, dict) else [{"message": "not a mapping"}]
        except (yaml.YAMLError, IndexError) as error:
            errors = [{"message": str(error)}]
        self._send(400 if errors else 200, {"errors": errors, "warnings": []})

    def _show(self, body: bytes, repo: str, revision: str = "main") -> None:
        if not self._check(repo):
            return
        if (found := self.hub.find(repo, revision)) is None:
            self._send(404, {"error": f"Invalid rev id: {revision}"}, X_Error_Code="RevisionNotFound")
            return
        oid, tree = found
        siblings = [{"rfilename": name} for name in tree]
        self._send(200, {"id": repo, "sha": oid, "private": repo in self.hub.private, "siblings": siblings})

    def _list(self, body: bytes, repo: str, revision: str, folder: str | None = None) -> None:
        if self._check(repo) and (found := self.hub.find(repo, revision)):
            prefix = f"{folder}/" if folder else ""
            files = [self.hub.describe(name, *entry) for name, entry in found[1].items() if name.startswith(prefix)]
            if files:
                self._send(200, files)
            else:
                self._send(404, {"error": f"{folder} does not exist"}, X_Error_Code="EntryNotFound")

    def _preupload(self, body: bytes, repo: str) -> None:
        if self._check(repo, write=True):
            files = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                }
                for file in json.loads(body)["files"]
            ]
            self._send(200, {"files": files})

    def _batch(self, body: bytes, repo: str) -> None:
        if self._check(repo, write=True):
            objects = [
                {
                    **each,
                    "authenticated": True,
                    **(
                        {}
                        if (self.hub.blobs / each["oid"]).exists()
                        else {"actions": {"upload": {"href": f"{self.hub.url}/storage/{each['oid']}"}}}
                    ),
                }
                for each in json.loads(body)["objects"]
            ]
            self._send(200, {"transfer": "basic", "objects": objects})

    def _store(self, body: bytes, oid: str) -> None:
        self._send(200 if self.hub.keep(body) == oid else 400)

    def _commit(self, body: bytes, repo: str) -> None:
        if not self._check(repo, write=True):
            return
        tree = dict(self.hub.commits[repo][-1][1])
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                tree[value["path"]] = (self.hub.keep(base64.b64decode(value["content"])), False)
            elif line["key"] == "lfsFile":
                assert (self.hub.blobs / value["oid"]).exists()
                tree[value["path"]] = (value["oid"], True)
            elif line["key"] == "deletedFile":
                del tree[value["path"]]
        oid = self.hub.commit(repo, tree)
        self._send(200, {"commitUrl": f"{self.hub.url}/{repo}/commit/{oid}", "commitOid": oid, "success": True})

    def _resolve(self, body: bytes, repo: str, revision: str, name: str) -> None:
        if not self._check(repo):
            return
        found = self.hub.find(repo, revision)
        if found is None or name not in found[1]:
            self._send(404, {"error": "Entry not found"}, X_Error_Code="EntryNotFound")
            return
        oid, is_lfs = found[1][name]
        facts = self.hub.describe(name, oid, is_lfs)
        if is_lfs:
            # As on the Hub, large files come from another host, to which the client must not send its token.
            location = f"{self.hub.url.replace('127.0.0.1', 'localhost')}/storage/{oid}"
            headers = {"X_Linked_Etag": f'"{oid}"', "X_Linked_Size": str(facts["size"])}
            self._send(302, X_Repo_Commit=found[0], Location=location, **headers)
        else:
            content = (self.hub.blobs / oid).read_bytes()
            length = {"Content_Length": str(len(content))}
            self._send(200, content, X_Repo_Commit=found[0], ETag=f'"{facts["oid"]}"', **length)

    def _load(self, body: bytes, oid: str) -> None:
        content = (self.hub.blobs / oid).read_bytes()
        self._send(200, content, ETag=f'"{oid}"', Content_Length=str(len(content)))

    _REPO = r"([^/]+/[^/]+)"
    ROUTES = (
        (r"POST /api/repos/create", _create),
        (r"POST /api/validate-yaml", _validate),
        (rf"GET /api/(?:models|datasets)/{_REPO}", _show),
        (rf"GET /api/(?:models|datasets)/{_REPO}/revision/(.+)", _show),
        (rf"GET /api/(?:models|datasets)/{_REPO}/tree/([^/]+)(?:/(.+))?", _list),
        (rf"POST /api/models/{_REPO}/preupload/main", _preupload),
        (rf"POST /{_REPO}\.git/info/lfs/objects/batch", _batch),
        (r"PUT /storage/(\w+)", _store),
        (r"(?:GET|HEAD) /storage/(\w+)", _load),
        (rf"POST /api/models/{_REPO}/commit/main", _commit),
        (rf"(?:GET|HEAD) (?:/datasets)?/{_REPO}/resolve/([^/]+)/(.+)", _resolve),
    )
