"""Holds the official Kaggle client and answers calls, one JSON document a line: ``python _client_child.py``.

A program of its own, because the client logs in when it is imported, prints to stdout, may ``exit()``, may ask
questions, and waits for ever for a server that is silent (kaggle 2.2.5, read in its source). ``client.py`` starts
it, asks it, and ends it. It needs the packages ``kaggle`` and ``requests`` and nothing of Perdure.

    {"method": "status", "limit_s": 60, "arguments": {"ref": "owner/slug"}}
    {"answer": {...}}   or   {"fault": {"kind": "http", "status": 429, "message": "...", "retry_after_s": 30}}
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from typing import Any

CONNECT_S = 15.0
READ_S = {"now": 60.0}
"""How long the client waits for the next byte; set for each call."""


class NoLoginError(Exception):
    """There are no credentials, or they are not accepted."""


def main() -> None:
    """Answer until stdin ends; then go at once, also in the middle of a call: nobody waits for it any more."""
    calls, answers = _claim_streams()
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(calls, waiting), daemon=True).start()
    client = Client()
    while True:
        call = json.loads(waiting.get())
        READ_S["now"] = float(call["limit_s"])
        try:
            said = {"answer": getattr(client, "do_" + call["method"])(**call["arguments"])}
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it is, it is the answer
            said = {"fault": fault_of(error)}
        answers.write(json.dumps(said) + "\n")
        answers.flush()


def _read(calls: Any, waiting: queue.SimpleQueue[str]) -> None:
    for line in calls:
        waiting.put(line)
    os._exit(0)


def _claim_streams() -> tuple[Any, Any]:
    """Stdin and stdout for ourselves; the client gets stderr and an empty stdin, so that it can ask nobody."""
    calls = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    sys.argv = ["perdure"]  # the client looks there for commands of its own
    return calls, answers


class Client:
    """The methods that can be called; what they give is plain data."""

    def __init__(self) -> None:
        self._api: Any = None

    @property
    def api(self) -> Any:
        """The client, logged in."""
        if self._api is None:
            self._api = log_in()
        return self._api

    def do_hello(self) -> dict[str, Any]:
        """Who we are."""
        values = self.api.config_values
        return {
            "user": values.get("username") or "",
            "way": values.get("auth_method") or "",
            "version": str(importlib.import_module("kaggle").__version__),
        }

    def do_push(self, folder: str, timeout_s: int | None) -> dict[str, Any]:
        """Save and run what lies in a folder with its ``kernel-metadata.json``."""
        response = self.api.kernels_push(folder, timeout=None if timeout_s is None else str(timeout_s))
        names = ("ref", "url", "version_number", "error")
        lists = ("dataset", "competition", "kernel", "model")
        return {name: getattr(response, name) for name in names} | {
            "invalid": {kind: list(getattr(response, f"invalid_{kind}_sources") or []) for kind in lists}
        }

    def do_status(self, ref: str) -> dict[str, Any]:
        """How a session stands; a word that the client does not know comes as it is."""
        try:
            response = self.api.kernels_status(ref)
        except KeyError as error:
            return {"word": str(error.args[0] if error.args else ""), "known": False, "message": ""}
        word = getattr(response.status, "name", None)
        return {
            "word": str(response.status if word is None else word),
            "known": word is not None,
            "message": response.failure_message or "",
        }

    def do_kernel(self, owner: str, slug: str) -> dict[str, Any]:
        """The newest version of a kernel, and the machine that it was last given."""
        types = importlib.import_module("kagglesdk.kernels.types.kernels_api_service")
        request = types.ApiGetKernelRequest()
        request.user_name, request.kernel_slug = owner, slug
        with self.api.build_kaggle_client() as kaggle:
            found = kaggle.kernels.kernels_api_client.get_kernel(request).metadata
        return {"version": found.current_version_number, "ref": found.ref, "machine": found.machine_shape}

    def do_output(self, owner: str, slug: str, version: int, page: str, size: int) -> dict[str, Any]:
        """A page of the output's files, each with the address that it can be had from, and the log."""
        types = importlib.import_module("kagglesdk.kernels.types.kernels_api_service")
        request = types.ApiListKernelSessionOutputRequest()
        request.user_name, request.kernel_slug = owner, slug
        request.page_size, request.page_token = size, page
        if version:
            request.version_label = f"v{version}"
        with self.api.build_kaggle_client() as kaggle:
            found = kaggle.kernels.kernels_api_client.list_kernel_session_output(request)
        files = [{"name": file.file_name, "url": file.url} for file in found.files or []]
        return {"files": files, "log": found.log or "", "next": found.next_page_token or ""}

    def do_sizes(self, ref: str, page: str, size: int) -> dict[str, Any]:
        """A page of the output's files, each with its size."""
        found = self.api.kernels_list_files(ref, page_token=page, page_size=size)
        files = [{"name": file.name, "size": file.size} for file in found.files or []]
        return {"files": files, "next": found.next_page_token or ""}

    def do_log(self, ref: str, quiet_s: float, most_s: float) -> dict[str, Any]:
        """The log of a session that runs, until nothing more comes for a while."""
        READ_S["now"] = quiet_s
        events: list[Any] = []
        end_s = time.monotonic() + most_s
        try:
            for event in self.api.kernels_logs_stream(ref):
                events.append(event)
                if time.monotonic() > end_s:
                    return {"events": events, "ended": False}
        except importlib.import_module("requests").exceptions.RequestException as error:
            if _chained(error, "ReadTimeout", "ReadTimeoutError") is None:
                raise
            return {"events": events, "ended": False}
        return {"events": events, "ended": True}

    def do_download(self, url: str, path: str, tries: int) -> dict[str, Any]:
        """A file of an output; what is there of it is gone on with, if it is still the same file there."""
        response = importlib.import_module("requests").get(url, stream=True)
        response.raise_for_status()
        self.api.download_file(
            response, path, None, quiet=True, resume=True, max_retries=tries, timeout=READ_S["now"]
        )
        return {"size": os.path.getsize(path)}

    def do_delete(self, ref: str) -> dict[str, Any]:
        """Delete a kernel; a session of it that runs is ended."""
        self.api.kernels_delete(ref, no_confirm=True)
        return {}

    def do_cancel(self, session: int) -> dict[str, Any]:
        """Ask for the end of a session by its number."""
        types = importlib.import_module("kagglesdk.kernels.types.kernels_api_service")
        request = types.ApiCancelKernelSessionRequest()
        request.kernel_session_id = session
        with self.api.build_kaggle_client() as kaggle:
            return {"error": kaggle.kernels.kernels_api_client.cancel_kernel_session(request).error_message or ""}

    def do_quota(self) -> dict[str, Any]:
        """The hours of this week, in seconds."""
        found = self.api.quota_view()
        refresh = found.quota_refresh_time
        kinds = {"gpu": found.gpu_quota, "tpu": found.tpu_quota}
        names = ("time_used", "time_reserved", "total_time_allowed")
        return {
            "refresh": None if refresh is None else refresh.isoformat(),
            "kinds": {
                kind: {name: _seconds(getattr(quota, name)) for name in names}
                for kind, quota in kinds.items()
                if quota is not None
            },
        }

    def do_dataset_create(self, folder: str) -> dict[str, Any]:
        """Make a private data set of what lies in a folder with its ``dataset-metadata.json``."""
        response = self.api.dataset_create_new(folder, public=False, quiet=True)
        return {"status": response.status or "", "error": response.error or "", "url": response.url or ""}

    def do_dataset_status(self, ref: str) -> dict[str, Any]:
        """How far a data set has come."""
        try:
            return {"status": str(self.api.dataset_status(ref))}
        except KeyError as error:
            return {"status": str(error.args[0] if error.args else "")}

    def do_dataset_text(self, ref: str, name: str) -> dict[str, Any]:
        """A small text file of the newest version of a data set that is ready."""
        with tempfile.TemporaryDirectory() as folder:
            self.api.dataset_download_file(ref, name, path=folder, force=True, quiet=True, unzip=True)
            with open(os.path.join(folder, os.path.basename(name)), encoding="utf-8") as file:
                return {"text": file.read()}


def log_in() -> Any:
    """The client of this process.

    Importing it logs in, and swallows what goes wrong with that; so it is tried once more where it did not work.

    Raises:
        NoLoginError: There are no credentials that Kaggle accepts.
    """
    _limit_waiting()
    api = importlib.import_module("kaggle").api
    if not api.config_values.get("auth_method"):
        api = importlib.import_module("kaggle.api.kaggle_api_extended").KaggleApi()
        try:
            api.authenticate()
        except SystemExit:
            raise NoLoginError("no credentials that Kaggle accepts were found") from None
    return api


def _limit_waiting() -> None:
    """The client sets no time-out anywhere: set one for every call that has none."""
    adapter = importlib.import_module("requests.adapters").HTTPAdapter
    send: Callable[..., Any] = adapter.send

    def limited(self: Any, request: Any, *arguments: Any, timeout: Any = None, **named: Any) -> Any:
        return send(self, request, *arguments, timeout=timeout or (CONNECT_S, READ_S["now"]), **named)

    adapter.send = limited


def _seconds(duration: Any) -> float | None:
    return None if duration is None else float(duration.total_seconds())


def fault_of(error: BaseException) -> dict[str, Any]:
    """Why a call has no answer; the words are those of ``refusals.Fault``."""
    if isinstance(error, NoLoginError):
        return {"kind": "credentials", "message": str(error)}
    if isinstance(error, ImportError):
        return {"kind": "import", "message": str(error)}
    answered = _chained(error, "HTTPError")
    if answered is not None and getattr(answered, "response", None) is not None:
        return _http_fault(answered.response)
    if (why := _why_unsent(error)) is not None:
        return {"kind": "unsent", "message": why}
    if isinstance(error, OSError) and error.errno and _chained(error, "RequestException") is None:
        return {"kind": "disk", "message": f"{error.filename or 'a file'}: {error.strerror}"}
    return {"kind": "lost", "message": f"{type(error).__name__}: {error}"}


def _http_fault(response: Any) -> dict[str, Any]:
    status = int(response.status_code)
    if status < 400:  # the client also takes {"code": 404, "message": ...} in an accepted answer for an error
        status = int(response.json()["code"])
    retry_after_s = _retry_after(response.headers.get("Retry-After"))
    return {"kind": "http", "status": status, "message": response.text, "retry_after_s": retry_after_s}


def _retry_after(text: str | None) -> float | None:
    """Seconds, or a date (RFC 9110, section 10.2.3)."""
    if not text:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except ValueError:
        return None


def _why_unsent(error: BaseException) -> str | None:
    """Why the server was not reached; None if it may have been."""
    if (refused := _chained(error, "NewConnectionError")) is not None:
        return str(refused).rpartition(": ")[2]
    if _chained(error, "ConnectTimeoutError", "ConnectTimeout") is not None:
        return f"no connection within {CONNECT_S:.0f} s"
    return "its certificate is not accepted" if "CERTIFICATE_VERIFY_FAILED" in str(error) else None


def _chained(error: BaseException, *names: str) -> Any:
    """The first error of a class with one of these names, in a chain of errors."""
    for link in _links(error, set()):
        if any(kind.__name__ in names for kind in type(link).__mro__):
            return link
    return None


def _links(error: BaseException, seen: set[int]) -> Iterator[BaseException]:
    if id(error) in seen:
        return
    seen.add(id(error))
    yield error
    behind = (error.__cause__, error.__context__, getattr(error, "reason", None), *error.args)
    for other in behind:
        if isinstance(other, BaseException):
            yield from _links(other, seen)


if __name__ == "__main__":
    main()
