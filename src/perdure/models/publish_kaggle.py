"""Kaggle models: one new version with exactly these files, then the version is listed."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from perdure.core.errors import ConfigError, MissingExtraError, PlatformError, TransientPlatformError
from perdure.models.remote import Listed, Outgoing, Receipt, refusal

LOG_IN = "put a token from kaggle.com/settings into ~/.kaggle/access_token, or set KAGGLE_API_TOKEN"
PROCESSING_S = 600.0
"""How long a version may take to show its files; Kaggle says "files are being processed" after an upload."""


def send(target: str, parts: list[str], files: list[Outgoing], message: str) -> Receipt:
    """Upload as ``owner/model/framework/variation``.

    kagglehub goes on without an error after some failed uploads (a token is returned all the same, kagglehub 1.0,
    ``gcs_upload._upload_blob``), so that only the listing tells. Kaggle lists sizes and no digests.

    Args:
        target: The target, as the user wrote it.
        parts: Owner, model, framework, variation.
        files: What to send.
        message: Notes of the version.

    Raises:
        ConfigError, MissingExtraError, PlatformError, TransientPlatformError: It was not done.
    """
    with _quiet_stdout():
        hub = _client()
        handle = hub.handle.ModelHandle(*parts, version=None)
        _check_framework(target, handle)
        if hub.config.get_kaggle_credentials() is None:
            raise PlatformError(f"{target}: there is no token for Kaggle", hint=LOG_IN)
        try:
            return _upload(target, hub, handle, files, message)
        except PlatformError:
            raise
        except Exception as error:
            raise refusal(error, target, log_in=LOG_IN) from error


def _client() -> Any:
    try:
        import kagglehub
        import kagglehub.clients
        import kagglehub.config
        import kagglehub.handle
        from kagglesdk.models.types import model_api_service

        _ = kagglehub.clients.build_kaggle_client, model_api_service
    except (ImportError, AttributeError) as error:
        raise MissingExtraError(
            f"publishing to Kaggle needs kagglehub 1.0 or newer: {error}", hint="pip install -U 'perdure[publish]'"
        ) from error
    return kagglehub


def _check_framework(target: str, handle: Any) -> None:
    try:
        handle.framework_enum()
    except (ValueError, KeyError) as error:
        raise ConfigError(
            f"{target}: Kaggle knows no framework {handle.framework!r}",
            hint="the third part is one of pyTorch, onnx, keras, tensorFlow2, transformers, other",
        ) from error


def _upload(target: str, hub: ModuleType, handle: Any, files: list[Outgoing], message: str) -> Receipt:
    before = _version(hub, handle)
    with tempfile.TemporaryDirectory(prefix="perdure-") as folder:
        for file in files:  # kagglehub takes a folder; links cost no room
            link = Path(folder, file.name)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(file.path.resolve())
        hub.model_upload(str(handle), folder, version_notes=message)
    number, listed = _wait(target, hub, handle, before, {file.name for file in files})
    return Receipt(handle.with_version(number).to_url(), listed)


def _wait(target: str, hub: ModuleType, handle: Any, before: int, names: set[str]) -> tuple[int, dict[str, Listed]]:
    """The new version and its files, once it shows all of them; what it shows at the end of the wait if not."""
    end, pause = time.monotonic() + PROCESSING_S, 0.25
    while True:
        number = _version(hub, handle)
        listed = _files(hub, handle, number) if number > before else {}
        if names <= listed.keys():
            return number, listed
        if time.monotonic() > end:
            break
        time.sleep(pause)
        pause = min(2 * pause, 10.0)
    if number > before:
        return number, listed
    raise TransientPlatformError(
        f"{target}: no new version is shown {PROCESSING_S:.0f} s after the upload", hint="look at its page"
    )


def _version(hub: ModuleType, handle: Any) -> int:
    """The newest version; 0 where there is none."""
    from kagglesdk.models.types.model_api_service import ApiGetModelInstanceRequest

    request = _about(ApiGetModelInstanceRequest(), handle)
    with hub.clients.build_kaggle_client() as client:
        try:
            return int(client.models.model_api_client.get_model_instance(request).version_number)
        except OSError as error:  # of requests
            if getattr(getattr(error, "response", None), "status_code", None) in (403, 404):
                return 0  # Kaggle answers "forbidden" for what is not there yet
            raise


def _files(hub: ModuleType, handle: Any, number: int) -> dict[str, Listed]:
    from kagglesdk.models.types.model_api_service import ApiListModelInstanceVersionFilesRequest

    found: dict[str, Listed] = {}
    token = ""
    with hub.clients.build_kaggle_client() as client:
        while True:
            request = _about(ApiListModelInstanceVersionFilesRequest(), handle)
            request.version_number, request.page_size, request.page_token = number, 100, token
            page = client.models.model_api_client.list_model_instance_version_files(request)
            found |= {file.name.lstrip("/"): Listed(file.size) for file in page.files or []}
            token = page.next_page_token
            if not token:
                return found


def _about(request: Any, handle: Any) -> Any:
    request.owner_slug, request.model_slug = handle.owner, handle.model
    request.framework, request.instance_slug = handle.framework_enum(), handle.variation
    return request


@contextlib.contextmanager
def _quiet_stdout() -> Iterator[None]:
    """kagglehub writes its progress to stdout, which belongs to data: to stderr while it works for us."""
    with contextlib.redirect_stdout(sys.stderr):
        with contextlib.suppress(ImportError):
            import kagglehub  # noqa: F401 - makes its handler
        handlers = [h for h in logging.getLogger("kagglehub").handlers if isinstance(h, logging.StreamHandler)]
        before = [(handler, handler.setStream(sys.stderr)) for handler in handlers]
        try:
            yield
        finally:
            for handler, stream in before:
                handler.setStream(stream or io.StringIO())
