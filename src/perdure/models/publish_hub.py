"""Hugging Face: one commit for all files, then the commit is listed."""

from __future__ import annotations

import os
import warnings
from typing import Any

from perdure.core.errors import ConfigError, MissingExtraError, PlatformError
from perdure.models.remote import Listed, Outgoing, Receipt, refusal

LOG_IN = "run: hf auth login, or set HF_TOKEN to a token with the right to write (huggingface.co/settings/tokens)"


def send(target: str, parts: list[str], files: list[Outgoing], message: str) -> Receipt:
    """Upload to ``user/repo``, into the folder that the further parts name.

    The API gives for each file the SHA-256 (large files) or git's SHA-1 (small ones), so that equality is proved
    without a download (huggingface_hub: ``HfApi.get_paths_info``).

    Args:
        target: The target, as the user wrote it.
        parts: User, repository, folders.
        files: What to send.
        message: Title of the commit.

    Raises:
        ConfigError, MissingExtraError, PlatformError, TransientPlatformError: It was not done.
    """
    hub = _client()
    if not hub.get_token():
        raise PlatformError(f"{target}: there is no token for Hugging Face", hint=LOG_IN)
    api = hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)
    try:
        return _commit(hub, api, "/".join(parts[:2]), "/".join(parts[2:]), files, message)
    except hub.errors.HFValidationError as error:
        raise ConfigError(f"{target}: {error}", hint="user and repository as on huggingface.co") from error
    except Exception as error:
        raise refusal(error, target, log_in=LOG_IN) from error


def _client() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError as error:
        raise MissingExtraError(
            "publishing to Hugging Face needs huggingface_hub", hint="pip install 'perdure[publish]'"
        ) from error
    return huggingface_hub


def _commit(hub: Any, api: Any, repo: str, folder: str, files: list[Outgoing], message: str) -> Receipt:
    api.create_repo(repo, private=True, exist_ok=True)
    places = {f"{folder}/{file.name}" if folder else file.name: file for file in files}
    additions = [hub.CommitOperationAdd(place, str(file.path)) for place, file in places.items()]
    with warnings.catch_warnings():  # a README without the hub's own header; words of its client to itself
        warnings.simplefilter("ignore", UserWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        done = api.create_commit(repo, additions, commit_message=message)
    there = api.get_paths_info(repo, list(places), revision=done.oid)
    listed = {places[found.path].name: _listed(found) for found in there if hasattr(found, "size")}
    return Receipt(done.commit_url, listed)


def _listed(found: Any) -> Listed:
    digest = f"sha256:{found.lfs.sha256}" if found.lfs else f"git-sha1:{found.blob_id}"
    return Listed(found.size, digest)
