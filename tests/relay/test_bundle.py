"""What travels to a session: the project as git sees it, Perdure itself, the same bytes each time."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.core.errors import BundleError, ConfigError
from perdure.relay import survey as surveys
from perdure.relay.bundle import digest_of, make_bundle
from perdure.relay.survey import survey

TOKEN = "hf_" + "aB3dE6gH9kL2nP5rS8uV1xY4zA7cF0iJ9m"


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("import model\n")
    (folder / "model.py").write_text("x = 1\n")
    return folder


def names(project, target="train.py"):
    return [item.name for item in survey(project, target).items]


def put(project, **files):
    for name, text in files.items():
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def refusal(project, target="train.py", **more):
    with pytest.raises(BundleError) as caught:
        survey(project, target, **more)
    return caught.value


# what stays behind


def test_rules_at_every_level_hold_and_deeper_ones_win(project):
    put(
        project, **{".gitignore": "*.log\n/data/\n", "data/big.bin": "x", "a/data/small.bin": "x", "a/run.log": "x"}
    )
    put(project, **{"a/.gitignore": "!run.log\nsecret*\n", "a/secrets.txt": "x", "top.log": "x"})
    assert names(project) == [".gitignore", "a/.gitignore", "a/data/small.bin", "a/run.log", "model.py", "train.py"]
    left = {item.name: item.reason for item in survey(project, "train.py").left}
    assert left == {"data/": ".gitignore:2", "top.log": ".gitignore:1", "a/secrets.txt": "a/.gitignore:2"}


def test_own_rules_win_over_gits_and_can_bring_back(project):
    put(project, **{".gitignore": "*.bin\n", ".perdureignore": "# only this one\n!table.bin\nnotes/\n"})
    put(project, **{"table.bin": "x", "other.bin": "x", "notes/a.txt": "x"})
    assert names(project) == [".gitignore", ".perdureignore", "model.py", "table.bin", "train.py"]
    assert {item.reason for item in survey(project, "train.py").left} == {".gitignore:1", ".perdureignore:3"}


def test_a_path_below_a_folder_that_git_ignores_can_be_taken_along(project):
    put(project, **{".gitignore": "data/\n", ".perdureignore": "!/data/small/a.csv\n!/data/b.csv\n"})
    put(project, **{"data/small/a.csv": "x", "data/small/c.csv": "x", "data/b.csv": "x", "data/huge/d.csv": "x"})
    assert names(project)[2:] == ["data/b.csv", "data/small/a.csv", "model.py", "train.py"]
    left = {item.name: item.reason for item in survey(project, "train.py").left}
    assert left == {"data/huge/": ".gitignore:1", "data/small/c.csv": ".gitignore:1"}
    put(project, **{"data/t.py": "x = 1"})
    assert "!data/t.py" in refusal(project, "data/t.py").hint
    put(project, **{".perdureignore": "!data/t.py\n"})
    assert survey(project, "data/t.py").target == "data/t.py"  # the advice is good


def test_rules_of_the_repository_around_a_project_hold(project, tmp_path):
    (tmp_path / ".git" / "info").mkdir(parents=True)
    (tmp_path / ".git" / "info" / "exclude").write_text("*.tmp\n")
    (tmp_path / ".gitignore").write_text("/project/weights/\n")
    put(project, **{"weights/w.pt": "x", "a.tmp": "x"})
    assert names(project) == ["model.py", "train.py"]


def test_what_no_session_needs_stays_behind(project):
    put(project, **{".git/config": "x", "__pycache__/a.pyc": "x", "env/pyvenv.cfg": "x", "env/lib/a.py": "x"})
    put(project, **{"runs/digits/run.json": "{}", "runs/digits/checkpoints/step-000000001/manifest.json": "{}"})
    put(
        project,
        **{"old/checkpoints/step-000000001/manifest.json": "{}", "bare/run.json": "{}", "bare/session.json": "{}"},
    )
    put(project, **{"relays/digits/perdure-relay.json": "{}", "relays/digits/perdure/digits/export/m.pth": "x"})
    put(project, **{"relays/.b.1a2b3c4d.part/want.json": "{}", "relays/.b.1a2b3c4d.part/files/m.pth": "x"})
    put(
        project,
        **{"emu/emulator.json": "{}", "emu/rules.json": "{}", "emu/account.json": '{"key": "' + "a1" * 16 + '"}'},
    )
    os.mkfifo(project / "pipe")
    assert names(project) == ["model.py", "train.py"]


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
@settings(max_examples=15)
@given(
    st.lists(
        st.sampled_from(
            [
                "*.log",
                "!keep.log",
                "/a",
                "a/",
                "b/*",
                "!b/keep.log",
                "**/c",
                "a/**/c.txt",
                "#x",
                "",
                "b/c/",
                "?.txt",
                "[ab].log",
            ]
        ),
        max_size=6,
    ),
    st.lists(st.sampled_from(["*.txt", "!c.txt", "/keep.log", "c/"]), max_size=3),
)
def test_rules_are_read_as_git_reads_them(tmp_path_factory, top, below):
    project = tmp_path_factory.mktemp("git")
    for name in (
        "a.log",
        "keep.log",
        "a.txt",
        "a/a.log",
        "b/keep.log",
        "b/a.log",
        "b/c/c.txt",
        "b/c/a.log",
        "c/c.txt",
    ):
        name = name.replace("a/", "d/") if name == "a/a.log" else name
        put(project, **{name: "x"})
    put(
        project,
        **{"train.py": "x = 1", ".gitignore": "\n".join(top) + "\n", "b/.gitignore": "\n".join(below) + "\n"},
    )
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    listing = ["git", "-c", "core.excludesFile=/dev/null", "ls-files", "--others", "--exclude-standard", "-z"]
    told = subprocess.run(listing, cwd=project, check=True, capture_output=True, text=True).stdout
    assert names(project) == sorted(name for name in told.split("\0") if name)


# what is refused


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("kaggle.json", "{}", "credentials of Kaggle"),
        ("config/.env", "A=1", "an environment with secrets"),
        ("access_token", "x", "a token of Kaggle"),
        (".streamlit/secrets.toml", "x", "secrets"),
        ("deploy/id_ed25519", "x", "a private key"),
        ("key.txt", "a\n-----BEGIN OPENSSH PRIVATE KEY-----\n", "line 2 looks like a private key"),
        (
            "notes.md",
            '{"username":"me","key":"' + "0123456789abcdef" * 2 + '"}',
            "line 1 looks like a key of Kaggle",
        ),
        ("a.py", f"x\ny\nlogin('{TOKEN}')\n", "line 3 looks like a token of Hugging Face"),
        ("a.ipynb", f'{{"source": ["login(\\"{TOKEN}\\")"]}}', "line 1 looks like a token of Hugging Face"),
        ("b.sh", "export KAGGLE_KEY=" + "ab" * 16, "line 1 looks like a key of Kaggle"),
        (
            "d.py",
            "k = 'sk-proj-" + "aB3dE6gH9kL2nP5rS8uV1xY4zA7cF0iJ9m'",
            "line 1 looks like a key of a model's provider",
        ),
        ("a:b.sh", f"TOKEN={TOKEN}", "line 1 looks like a token of Hugging Face"),
        ("c.yaml", "aws: AKIA" + "ABCDEFGH12345678", "line 1 looks like a key of Amazon's cloud"),
    ],
)
def test_a_secret_is_refused_with_its_place_and_never_shown(project, name, text, kind):
    put(project, **{name: text})
    error = refusal(project)
    assert f"{name}: {kind}" in error.what
    assert f"echo '/{name}' >> .perdureignore" in error.hint
    assert TOKEN not in str(error)
    (project / ".perdureignore").write_text(f"/{name}\n")
    assert name not in names(project)


def test_a_secret_in_text_of_windows_is_seen(project):
    (project / "note.txt").write_bytes(f"one\r\n{TOKEN}\r\n".encode("utf-16"))
    assert "note.txt: line 2 looks like a token of Hugging Face" in refusal(project).what


def test_a_line_that_only_looks_like_a_secret_can_say_so(project):
    put(project, **{"a.py": f"t = '{TOKEN}'  # perdure: not a secret\n", ".env.example": "KEY=\n"})
    put(
        project,
        **{"b.css": ".sk-toggleable__content-wrapper-estimator-doc-link-2 {}", "c.txt": "hash " + "ab" * 16},
    )
    assert {"a.py", "b.css", "c.txt", ".env.example"} <= set(names(project))


def test_nothing_to_run_is_refused(project, tmp_path):
    assert "there is no file gone.py" in refusal(project, "gone.py").what
    put(
        project,
        **{".gitignore": "tools/\n", "tools/t.py": "x = 1", "readme.txt": "x", "empty.ipynb": '{"cells": []}'},
    )
    error = refusal(project, "tools/t.py")
    assert "tools/t.py stays behind: .gitignore:1" in error.what
    assert "!tools/t.py" in error.hint
    assert "neither a .py script" in refusal(project, "readme.txt").what
    assert "has no code" in refusal(project, "empty.ipynb").what
    put(
        project,
        **{"bad.ipynb": "no json", "r.ipynb": '{"cells": [], "metadata": {"language_info": {"name": "R"}}}'},
    )
    for text in ("no json", "[" * 100_000, '{"cells": [{"cell_type": "code", "source": null}]}'):
        put(project, **{"bad.ipynb": text})
        assert "is no notebook" in refusal(project, "bad.ipynb").what
    put(project, **{"unsaved.py": ""})
    assert refusal(project, "unsaved.py").what == "nothing to run: unsaved.py is empty"
    assert "a notebook in R" in refusal(project, "r.ipynb").what
    assert "takes no arguments" in refusal(project, "empty.ipynb", arguments=("--a",)).what
    with pytest.raises(ConfigError, match="is not in the project"):
        survey(project, str(tmp_path / "other.py"))
    with pytest.raises(BundleError, match="there is no folder"):
        survey(tmp_path / "nowhere", "train.py")


def test_a_project_that_is_too_large_names_its_largest_files(project, monkeypatch):
    monkeypatch.setattr(surveys, "MOST_BYTES", 10_000)
    put(project, **{"data/huge.bin": "x" * 9000, "data/large.bin": "x" * 2000})
    error = refusal(project)
    assert "data/huge.bin: 9.0 kB\n  - data/large.bin: 2.0 kB" in error.what
    assert "--dataset" in error.hint


def test_links_inside_travel_and_others_are_refused(project, tmp_path):
    put(project, **{"a/b.py": "x = 1"})
    (project / "short.py").symlink_to("a/b.py")
    (project / "folder").symlink_to("a")
    content = {item.name: item.link for item in survey(project, "train.py").items}
    assert content["short.py"] == "a/b.py"
    assert content["folder"] == "a"
    (project / ".gitignore").write_text("/a/\n")
    assert "which stays behind: .gitignore:1" in refusal(project).what
    (project / ".gitignore").write_text("/short.py\n/folder\n")
    (project / "data").symlink_to(tmp_path)
    assert "data is a link that leads out of the project" in refusal(project).what
    (project / "data").unlink()
    (project / "lost").symlink_to("gone")
    assert "lost is a link that leads nowhere" in refusal(project).what


def test_a_script_with_an_error_is_noted_and_travels(project):
    put(project, **{"train.py": "def f(:\n"})
    note = survey(project, "train.py").notes[0]
    assert "train.py is no Python that this interpreter understands" in note
    assert note.count("line 1") == 1
    put(project, **{"train.py": "x = " + "-" * 300_000 + "1"})
    assert "train.py is no Python that this interpreter understands" in survey(project, "train.py").notes[0]


# the archive


def test_the_same_content_gives_the_same_bytes(project, tmp_path):
    put(project, **{"z/a.txt": "x", "run.sh": "#!/bin/sh\n"})
    (project / "run.sh").chmod(0o775)
    one = make_bundle(project, "train.py", tmp_path / "one.tar.xz")
    other = tmp_path / "elsewhere"
    shutil.copytree(project, other)
    for path in other.rglob("*"):
        os.utime(path, (1, 1))
    two = make_bundle(other, "train.py", tmp_path / "two.tar.xz")
    assert one.digest == two.digest == digest_of((tmp_path / "one.tar.xz").read_bytes())
    put(other, **{"model.py": "x = 2\n"})
    assert make_bundle(other, "train.py", tmp_path / "two.tar.xz").digest != one.digest


def test_the_bundle_holds_the_project_and_a_perdure_that_works(project, tmp_path):
    (project / "run.sh").write_text("#!/bin/sh\n")
    (project / "run.sh").chmod(0o755)
    (project / "link.py").symlink_to("model.py")
    bundle = make_bundle(project, str(project / "train.py"), tmp_path / "new" / "bundle.tar.xz")
    assert bundle.size_bytes == bundle.path.stat().st_size
    assert bundle.text_bytes < 900_000  # a small project travels in the source itself
    with tarfile.open(fileobj=io.BytesIO(bundle.path.read_bytes()), mode="r:xz") as archive:
        assert not [
            name
            for name in archive.getnames()
            if "__pycache__" in name or name.startswith("library/perdure/testing")
        ]
        archive.extractall(tmp_path / "there", filter="data")
    assert (tmp_path / "there/project/link.py").read_text() == "x = 1\n"
    assert os.access(tmp_path / "there/project/run.sh", os.X_OK)
    code = "import perdure, importlib.metadata as m; print(perdure.__file__); print(m.version('perdure'))"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "there" / "library")}
    told = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    where, version = told.stdout.split()
    assert where == str(tmp_path / "there/library/perdure/__init__.py")
    assert version[0].isdigit()
