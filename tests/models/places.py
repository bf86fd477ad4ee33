"""Hugging Face and Kaggle in small, on localhost: what their real clients ask of them when files are published.

The routes and fields are those that huggingface_hub 2.4 and kagglehub 1.0 use; each is answered as the place does.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit


class Place:
    """A server; ``files`` is what it holds, by name, ``asked`` what it was asked for, in order."""

    def __init__(self, handler):
        self.files = {}
        self.blobs = {}
        self.asked = []
        self.said = {}
        self.trouble = None  # (pattern of the path, status): answers so
        self.spoil = None  # bytes -> bytes: what it keeps in place of what was sent
        self.lag = 0  # how often a new version is not shown yet
        self.hidden = 0
        self.ignored = set()
        self.version = 0
        place = self

        class Handler(handler):
            here = place

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def keep(self, data):
        return self.spoil(data) if self.spoil else data


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def body(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            data = b""
            while size := int(self.rfile.readline(), 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return data
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def reply(self, value, status=200):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def handle_any(self):
        path, data = urlsplit(self.path).path, self.body()
        self.here.asked.append(f"{self.command} {path}")
        if self.here.trouble and re.search(self.here.trouble[0], path):
            return self.reply({"error": "trouble on purpose"}, self.here.trouble[1])
        if not path.startswith(("/lfs/", "/blob/")) and not self.headers.get("Authorization"):
            return self.reply({"error": "who are you?"}, 401)
        return self.answer(path, data)

    do_GET = do_POST = do_PUT = do_HEAD = handle_any


class HuggingFace(_Handler):
    """Small files travel in the commit, large ones (here: over 100 bytes) by the LFS protocol."""

    def answer(self, path, data):
        here = self.here
        if path == "/api/repos/create":
            here.said["create"] = json.loads(data)
            return self.reply({"url": f"{here.url}/user/repo"})
        if path == "/api/validate-yaml":
            return self.reply({"errors": [], "warnings": []})
        if "/preupload/" in path:
            return self.reply({"files": [self._mode(file) for file in json.loads(data)["files"]]})
        if path.endswith("/info/lfs/objects/batch"):
            return self.reply({"objects": [self._action(o) for o in json.loads(data)["objects"]]})
        if path.startswith("/lfs/"):
            here.blobs[path.removeprefix("/lfs/")] = here.keep(data)
            return self.reply({})
        if "/commit/" in path:
            return self._commit([json.loads(line) for line in data.splitlines()])
        if "/paths-info/" in path:
            names = [value for key, value in parse_qsl(data.decode()) if key == "paths"]
            return self.reply([self._info(name) for name in names if name in here.files])
        if re.fullmatch(r"/api/models/user/repo(/revision/main)?", path):
            return self.reply({"id": "user/repo", "sha": "0" * 40, "siblings": []})
        return self.reply({"error": f"no such route: {path}"}, 404)

    def _mode(self, file):
        known = self.here.files.get(file["path"])
        info = {
            "path": file["path"],
            "shouldIgnore": file["path"] in self.here.ignored,
            "uploadMode": "lfs" if file["size"] > 100 else "regular",
        }
        if known is not None:
            info["oid"] = hashlib.sha256(known).hexdigest() if len(known) > 100 else git_sha1(known)
        return info

    def _action(self, thing):
        upload = {"href": f"{self.here.url}/lfs/{thing['oid']}", "header": {}}
        return {"oid": thing["oid"], "size": thing["size"], "actions": {"upload": upload}}

    def _commit(self, lines):
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                self.here.said["commit"] = value
            elif line["key"] == "file":
                self.here.files[value["path"]] = self.here.keep(base64.b64decode(value["content"]))
            elif line["key"] == "lfsFile":
                self.here.files[value["path"]] = self.here.blobs[value["oid"]]
        return self.reply({"commitUrl": f"{self.here.url}/user/repo/commit/{'1' * 40}", "commitOid": "1" * 40})

    def _info(self, name):
        data = self.here.files[name]
        info = {"type": "file", "path": name, "size": len(data), "oid": git_sha1(data)}
        if len(data) > 100:
            sha = hashlib.sha256(data).hexdigest()
            info["lfs"] = {"oid": sha, "size": len(data), "pointerSize": 130}
        return info


class Kaggle(_Handler):
    """The client says ``localhost`` without a port; it is sent here as by a proxy."""

    def answer(self, path, data):
        here, call = self.here, path.rpartition("/")[2]
        if path.startswith("/blob/"):
            name = path.removeprefix("/blob/")
            here.blobs[name] = here.keep(data)
            return self.reply({})
        asked = json.loads(data or b"{}")
        here.said[call] = asked
        if call == "GetModel":
            return self.reply({"slug": "m"}) if here.version else self._absent()
        if call == "CreateModel":
            return self.reply({"id": 1, "url": "/models/o/m"})
        if call == "StartBlobUpload":
            token = f"t{len(here.blobs)}-{asked['name']}"
            here.blobs[token] = b""
            return self.reply({"token": token, "createUrl": f"{here.url}/blob/{token}"})
        if call == "CreateModelInstance":
            if here.version:
                return self.reply({"error": "it is there already", "errorCode": 409})
            return self._new_version(asked["body"])
        if call == "CreateModelInstanceVersion":
            return self._new_version(asked["body"])
        if call == "GetModelInstance":
            if not here.version:
                return self._absent()
            shown = here.version - (here.hidden > 0)
            here.hidden -= here.hidden > 0
            return self.reply({"id": 1, "versionNumber": shown})
        if call == "ListModelInstanceVersionFiles":
            return self._list(asked)
        return self.reply({"code": 404, "message": f"no such call: {call}"}, 404)

    def _absent(self):
        return self.reply({"error": {"code": 404, "message": "not found", "status": "NOT_FOUND"}}, 404)

    def _new_version(self, body):
        self.here.version += 1
        self.here.hidden = self.here.lag
        self.here.files = dict(self._walk(body, ""))
        return self.reply({"id": 1, "url": "/models/o/m"})

    def _walk(self, folder, above):
        for file in folder.get("files", []):
            name = file["token"].partition("-")[2]
            yield above + name, self.here.blobs[file["token"]]
        for child in folder.get("directories", []):
            yield from self._walk(child, f"{above}{child['name']}/")

    def _list(self, asked):
        """Two a page."""
        names, start = sorted(self.here.files), int(asked.get("pageToken") or 0)
        files = [{"name": n, "size": len(self.here.files[n])} for n in names[start : start + 2]]
        more = {"nextPageToken": str(start + 2)} if start + 2 < len(names) else {}
        return self.reply({"files": files, **more})


def git_sha1(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
