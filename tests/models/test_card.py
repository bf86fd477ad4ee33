"""The card beside model files: what is on it is so, and its lines run."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from perdure.core.digests import digest
from perdure.models.card import CARD, find_entry, read_card, write_card
from perdure.models.check import check_model
from perdure.models.export import export_model
from perdure.models.formats import Example, Exported, Facts, Parity, Port, Signature, Source
from perdure.models.loading import load_lines
from perdure.models.page import MARK

FACTS = Facts(
    run="digits",
    step=720,
    epoch=3,
    batch=20,
    metrics={"loss": 0.25, "best|of": float("nan")},
    libraries={"torch": "2.13.0"},
    hardware={"device": "cuda", "card": "Tesla T4"},
)
IMAGES = Signature((Port("images", "float32", ("batch", 4)),), (Port("logits", "float32", ("batch", 2)),))

STRANGER = """
import json, torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
        self.head = nn.Linear(3, 2)

    def forward(self, images, gain):
        return self.head(self.body(images)) * gain

torch.manual_seed(1)
images, gain = torch.arange(12.0).reshape(3, 4) / 6, torch.tensor([2.0])
if __name__ == "__main__":
    card, answers = json.load(open("model-card.json")), {}
    for file in card["models"][0]["files"]:
        words = {"model": Net(), "images": images, "gain": gain}
        if file["format"] == "onnx":
            words |= {"images": images.numpy(), "gain": gain.numpy()}
        exec("\\n".join(file["load"]), words)
        if "outputs" not in words:
            words["outputs"] = words["model"].eval()(images, gain)
        outputs = words["outputs"]
        outputs = outputs[0] if isinstance(outputs, list) else outputs.detach().numpy()
        answers[file["format"]] = [len(file["load"]), outputs.tolist()]
    print(json.dumps(answers))
"""


def exported(path: Path, content: bytes = b"weights", format: str = "pth", **changes) -> Exported:
    """A file that is there, as an export describes it."""
    path.write_bytes(content)
    parity = Parity("torch.load(weights_only=True)", tensors=4)
    return Exported(format, path, len(content), digest(path), parity, **changes)


def test_the_lines_on_the_card_load_and_run_every_format_in_a_strangers_process(tmp_path: Path) -> None:
    words: dict = {"__name__": "stranger"}
    exec(STRANGER, words)
    model, inputs = words["Net"](), (words["images"], words["gain"])
    model.train()(*inputs)  # moves the statistics of the normalisation
    expected = model.eval()(*inputs)
    classic = {"epoch": 3}
    source = Source(model.state_dict(), model, Example((inputs[0],), {"gain": inputs[1]}), classic=classic)
    formats = ("pth", "pth-classic", "safetensors", "pt2", "onnx")
    export_model(source, tmp_path, "digits-step-000000720", formats, FACTS)
    (tmp_path / "stranger.py").write_text(STRANGER)
    done = subprocess.run([sys.executable, "stranger.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert list(answers) == list(formats)
    for count, outputs in answers.values():
        assert count == 3
        torch.testing.assert_close(torch.tensor(outputs), expected.detach(), rtol=1e-5, atol=1e-6)


def test_the_card_says_where_a_model_comes_from_and_what_was_proved(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    source = Source(model.state_dict(), model, Example((torch.ones(3, 4),)))
    export_model(source, tmp_path, "digits-step-000000720", ("pth",), FACTS)
    card = json.loads((tmp_path / CARD).read_text(), parse_constant=pytest.fail)  # NaN is no JSON
    (told,) = card["models"]
    assert (told["run"], told["step"], told["position"]) == ("digits", 720, {"epoch": 3, "batch": 20})
    assert told["metrics"] == {"loss": 0.25, "best|of": "nan"}
    assert told["hardware"] == {"device": "cuda", "card": "Tesla T4"}
    assert told["signature"]["inputs"][0] | {"name": ""} == {
        "name": "", "dtype": "float32", "shape": ["batch", 4], "keyword": False,
    }  # fmt: skip
    (file,) = told["files"]
    data = (tmp_path / file["file"]).read_bytes()
    assert file["digest"] == f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert file["bytes"] == len(data)
    assert file["parity"]["where"] == "fresh process"
    assert file["parity"]["tensors"] == 2
    assert file["parity"]["outputs"][0]["largest"] <= 1e-6
    told = check_model(tmp_path / file["file"]).card
    assert told == "as model-card.json describes it, of run digits at step 720"


def test_the_page_is_for_people(tmp_path: Path) -> None:
    write_card(tmp_path, [exported(tmp_path / "digits.pth", notes=("a fixed batch of 4",))], FACTS, IMAGES)
    page = (tmp_path / "README.md").read_text()
    assert "Run `digits` at step 720, epoch 3. Made with torch 2.13.0 on cuda, Tesla T4." in page
    assert "| loss | 0.25 |" in page
    assert "| best\\|of | nan |" in page
    assert "- input `images`: float32 [batch, 4]" in page
    assert "| `digits.pth` | 7 B | torch.load(weights_only=True); 4 tensors bit for bit |" in page
    assert 'weights = torch.load("digits.pth", map_location="cpu", weights_only=True)' in page
    assert "a fixed batch of 4" in page


def test_somebody_elses_page_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# My project\n")
    write_card(tmp_path, [exported(tmp_path / "m.pth")], FACTS, None)
    assert (tmp_path / "README.md").read_text() == "# My project\n"
    assert (tmp_path / "model-card.md").read_text().startswith(MARK)


def test_our_own_page_is_replaced(tmp_path: Path) -> None:
    write_card(tmp_path, [exported(tmp_path / "one.pth")], FACTS, None)
    write_card(tmp_path, [exported(tmp_path / "two.pth")], Facts(run="other"), None)
    page = (tmp_path / "README.md").read_text()
    assert page.count(MARK) == 1
    assert "# one\n" in page
    assert "# two\n" in page
    assert not (tmp_path / "model-card.md").exists()


def test_a_later_export_adds_to_the_card_and_drops_what_is_gone(tmp_path: Path) -> None:
    old, gone = exported(tmp_path / "old.pth"), exported(tmp_path / "gone.pth")
    write_card(tmp_path, [old], FACTS, None)
    write_card(tmp_path, [gone], FACTS, None)
    gone.path.unlink()
    write_card(tmp_path, [exported(tmp_path / "new.pth")], Facts(run="digits", step=1440), None)
    card = read_card(tmp_path)
    assert card is not None
    assert [each["name"] for each in card["models"]] == ["old", "new"]


def test_a_file_that_is_made_again_is_described_once(tmp_path: Path) -> None:
    write_card(tmp_path, [exported(tmp_path / "m.pth", b"one"), exported(tmp_path / "m.onnx", b"1")], FACTS, None)
    write_card(tmp_path, [exported(tmp_path / "m.pth", b"other")], Facts(run="digits", step=9), None)
    card = read_card(tmp_path)
    assert card is not None
    assert [[f["file"] for f in each["files"]] for each in card["models"]] == [["m.onnx"], ["m.pth"]]
    entry = find_entry(tmp_path / "m.pth")
    assert entry is not None
    assert (entry.model["step"], entry.file["digest"]) == (9, digest(tmp_path / "m.pth"))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"models": 3}', '{"models": [{"files": [3]}]}', "\x00"])
def test_a_card_that_cannot_be_understood_is_no_card(tmp_path: Path, text: str) -> None:
    (tmp_path / CARD).write_text(text)
    assert read_card(tmp_path) is None
    assert find_entry(tmp_path / "m.pth") is None
    write_card(tmp_path, [exported(tmp_path / "m.pth")], FACTS, None)
    assert find_entry(tmp_path / "m.pth") is not None


def test_the_digest_of_a_folder_is_that_of_sha256sum(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.txt", "a.txt"):
        path = tmp_path / "model" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    command = "find . -type f | sed 's:^./::' | LC_ALL=C sort | xargs sha256sum | sha256sum"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path / "model", capture_output=True, text=True)
    assert digest(tmp_path / "model") == f"sha256:{done.stdout.split()[0]}"


@pytest.mark.parametrize(
    "format", ["pth", "pth-classic", "safetensors", "pt2", "onnx", "keras", "h5", "savedmodel"]
)
@pytest.mark.parametrize("name", ["images", "serving_default_x:0", "class", "a b", 'quote"d'])
def test_the_lines_are_python_whatever_inputs_and_files_are_called(format: str, name: str) -> None:
    signature = Signature((Port(name, "float32", (1,)), Port("mask", "bool", (1,), keyword=True)))
    lines = load_lines(format, 'a "strange" name.pth', signature)
    assert len(lines) == 3
    compile("\n".join(lines), "card", "exec")
