"""Data sets: made of uploads, in versions, not ready at once."""

from __future__ import annotations

import shutil
import tarfile
import time
import zipfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

from perdure.testing.kaggle.answers import File, Json, Redirect, iso, page, tidy
from perdure.testing.kaggle.errors import ApiError, denied
from perdure.testing.kaggle.links import Links
from perdure.testing.kaggle.uploads import Uploads
from perdure.testing.kaggle.world import Dataset, DatasetVersion, Store

_COMING = ("BLOBS_RECEIVED", "BLOBS_DECOMPRESSED", "BLOBS_COPIED_TO_SDS", "INDIVIDUAL_BLOBS_COMPRESSED")
_WHOLE_ARCHIVE = "archive.zip"
"""What kagglehub sends for more than 50 files: its content is the data set's."""


class Datasets:
    """Answers about data sets.

    Args:
        store: The world.
        uploads: Files on their way.
        links: Makes addresses of files.
    """

    def __init__(self, store: Store, uploads: Uploads, links: Links) -> None:
        self._store = store
        self._uploads = uploads
        self._links = links

    def create(self, request: dict[str, Any]) -> Json:
        """``CreateDataset``; a name that is taken is an ``error`` in an answer that says 200."""
        store, slug = self._store, str(request.get("slug") or "").lower()
        title = str(request.get("title") or slug)
        self._check_owner(request)
        if not (6 <= len(slug) <= 50 and 6 <= len(title) <= 50):
            return Json({"status": "error", "error": "The title and the slug must be 6 to 50 characters long."})
        with store.lock:
            if slug in store.world.datasets:
                text = f"The requested title {title!r} is already in use by a dataset. Please choose another title."
                return Json({"status": "error", "error": text})
            private = bool(request.get("isPrivate", False))
            license_name = str(request.get("licenseName") or "unknown")
            dataset = Dataset(store.world.number(), slug, title, time.time(), private, license_name)
            self._add_version(dataset, request, "")
            store.world.datasets[slug] = dataset
            store.save()
        return self._made(dataset)

    def create_version(self, request: dict[str, Any]) -> Json:
        """``CreateDatasetVersion``; forbidden while the one before is processed (kagglehub issue 181)."""
        with self._store.lock:
            if "id" in request:
                found = [each for each in self._store.world.datasets.values() if each.id == request["id"]]
                dataset = found[0] if found else self._dataset({})
            else:
                dataset = self._dataset(request)
            if not self._is_ready(dataset.versions[-1]):
                raise denied("datasets.update")
            body = request.get("body") or {}
            self._add_version(dataset, body, str(body.get("versionNotes") or ""))
            if body.get("deleteOldVersions"):
                for old in dataset.versions[:-1]:
                    shutil.rmtree(self._store.dataset_folder(dataset, old.number), ignore_errors=True)
                del dataset.versions[:-1]
            self._store.save()
        return self._made(dataset)

    def status(self, request: dict[str, Any]) -> Json:
        """``GetDatasetStatus``, of the newest version."""
        dataset = self._dataset(request)
        newest = dataset.versions[-1]
        if self._is_ready(newest):
            return Json({"status": "READY"})
        if self._store.switches.dataset_stuck:
            return Json({"status": _COMING[0]})
        part = (time.time() - newest.created_s) / max(1e-9, newest.ready_s - newest.created_s)
        return Json({"status": _COMING[min(len(_COMING) - 1, int(part * len(_COMING)))]})

    def get(self, request: dict[str, Any]) -> Json:
        """``GetDataset``."""
        return Json(self._document(self._dataset(request)))

    def metadata(self, request: dict[str, Any]) -> Json:
        """``GetDatasetMetadata``."""
        dataset = self._dataset(request)
        info = {
            "datasetId": dataset.id,
            "datasetSlug": dataset.slug,
            "ownerUser": self._store.rules.owner,
            "title": dataset.title,
            "isPrivate": dataset.private,
            "licenses": [{"name": dataset.license}],
        }
        return Json({"info": info, "errorMessage": ""})

    def listing(self, request: dict[str, Any]) -> Json:
        """``ListDatasets``: those of the account."""
        with self._store.lock:
            found = [each for each in self._store.world.datasets.values() if self._is_visible(each)]
        search = str(request.get("search") or "").lower()
        found = [each for each in found if search in each.slug or search in each.title.lower()]
        shown, token = page(found, request, self._store.switches.page_most)
        return Json({"datasets": [self._document(each) for each in shown], "nextPageToken": token})

    def files(self, request: dict[str, Any]) -> Json:
        """``ListDatasetFiles``: of one version, by default the newest that is ready."""
        dataset = self._dataset(request)
        version = self._version(dataset, request)
        listed, token = page(self._paths(dataset, version), request, self._store.switches.page_most)
        root = self._store.dataset_folder(dataset, version.number)
        documents = [
            {
                "name": path.relative_to(root).as_posix(),
                "totalBytes": path.stat().st_size,
                "creationDate": iso(version.created_s),
            }
            for path in listed
        ]
        return Json({"datasetFiles": documents, "nextPageToken": token})

    def download(self, request: dict[str, Any]) -> Redirect:
        """``DownloadDataset``: one file, or an archive of all."""
        dataset = self._dataset(request)
        version = self._version(dataset, request)
        root, wanted = self._store.dataset_folder(dataset, version.number), request.get("fileName")
        ref = f"{dataset.slug}/{version.number}"
        if wanted:
            if not any(path.relative_to(root).as_posix() == wanted for path in self._paths(dataset, version)):
                raise ApiError(404, f"{wanted} was not found")
            return Redirect(self._links.make("dataset", f"{ref}/{quote(str(wanted))}"))
        archive = root.with_suffix(".zip")
        with zipfile.ZipFile(archive, "w") as file:
            for path in self._paths(dataset, version):
                file.write(path, path.relative_to(root))
        return Redirect(self._links.make("bundle", ref))

    def delete(self, request: dict[str, Any]) -> Json:
        """``DeleteDataset``."""
        with self._store.lock:
            dataset = self._dataset(request)
            del self._store.world.datasets[dataset.slug]
            shutil.rmtree(self._store.dataset_folder(dataset, 1).parent, ignore_errors=True)
            self._store.save()
        return Json({})

    def file(self, kind: str, what: str) -> File:
        """A file of a version, or the archive of all, by its address."""
        slug, _, rest = what.partition("/")
        number, _, name = rest.partition("/")
        folder = self._store.folder / "datasets" / slug
        return File(folder / number / name if kind == "dataset" else folder / f"{int(number)}.zip")

    def _dataset(self, request: dict[str, Any]) -> Dataset:
        self._check_owner(request)
        dataset = self._store.world.datasets.get(str(request.get("datasetSlug") or "").lower())
        if dataset is None or not self._is_visible(dataset):
            raise denied("datasets.get")
        return dataset

    def _check_owner(self, request: dict[str, Any]) -> None:
        owner = str(request.get("ownerSlug") or self._store.rules.owner)
        if owner.lower() != self._store.rules.owner.lower():
            raise denied("datasets.get")

    def _is_visible(self, dataset: Dataset) -> bool:
        return time.time() - dataset.created_s >= self._store.switches.dataset_forbidden_s

    def _is_ready(self, version: DatasetVersion) -> bool:
        return version.ready_s <= time.time() and not self._store.switches.dataset_stuck

    def _version(self, dataset: Dataset, request: dict[str, Any]) -> DatasetVersion:
        wanted = request.get("datasetVersionNumber")
        ready = [each for each in dataset.versions if self._is_ready(each)]
        found = [each for each in ready if wanted is None or each.number == int(wanted)]
        if not found:
            raise ApiError(404, "There is no such version, or it is not ready")
        return found[-1]

    def _paths(self, dataset: Dataset, version: DatasetVersion) -> list[Path]:
        root = self._store.dataset_folder(dataset, version.number)
        return [path for path in sorted(root.rglob("*")) if path.is_file()]

    def _add_version(self, dataset: Dataset, body: dict[str, Any], notes: str) -> None:
        number = dataset.versions[-1].number + 1 if dataset.versions else 1
        folder = self._store.dataset_folder(dataset, number)
        shutil.rmtree(folder, ignore_errors=True)  # of a call that died with the emulator
        folder.mkdir(parents=True)
        self._place(body, folder)
        now_s = time.time()
        dataset.versions.append(DatasetVersion(number, now_s, now_s + self._store.rules.dataset_ready_s, notes))

    def _place(self, body: dict[str, Any], folder: Path) -> None:
        """Put the uploads where they belong, folders below folders (as kagglehub sends them)."""
        for each in body.get("files") or []:
            self._unpack(self._uploads.take(str(each.get("token")), folder))
        for each in body.get("directories") or []:
            self._place(each, folder / Path(str(each.get("name") or "folder")).name)

    def _unpack(self, path: Path) -> None:
        """Archives are unpacked (a maintainer in kaggle-cli pull request 111); into which folder is not known."""
        ending = next((each for each in self._store.switches.unpack if path.name.endswith(each)), "")
        if not ending or not (zipfile.is_zipfile(path) or tarfile.is_tarfile(path)):
            return
        packed = path.rename(path.with_name(f".{path.name}"))
        target = path.parent if path.name == _WHOLE_ARCHIVE else path.with_name(path.name.removesuffix(ending))
        if zipfile.is_zipfile(packed):
            with zipfile.ZipFile(packed) as archive:
                archive.extractall(target)
        else:
            with tarfile.open(packed) as tar:
                tar.extractall(target, filter="data")
        packed.unlink()

    def _made(self, dataset: Dataset) -> Json:
        ref = f"{self._store.rules.owner}/{dataset.slug}"
        url = f"https://www.kaggle.com/datasets/{ref}"
        return Json({"ref": f"/{ref}", "url": url, "status": "ok", "error": "", "invalidTags": []})

    def _document(self, dataset: Dataset) -> dict[str, Any]:
        ready = [each for each in dataset.versions if self._is_ready(each)]
        owner = self._store.rules.owner
        return tidy(
            {
                "id": dataset.id,
                "ref": f"{owner}/{dataset.slug}",
                "title": dataset.title,
                "ownerRef": owner,
                "ownerName": owner,
                "isPrivate": dataset.private,
                "licenseName": dataset.license,
                "lastUpdated": iso(dataset.versions[-1].created_s),
                "currentVersionNumber": ready[-1].number if ready else None,
                "totalBytes": sum(p.stat().st_size for p in self._paths(dataset, ready[-1])) if ready else 0,
                "versions": [
                    tidy({"versionNumber": each.number, "versionNotes": each.notes, "status": "Ready"})
                    for each in ready
                ],
            }
        )
