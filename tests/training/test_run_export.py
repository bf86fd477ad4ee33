"""What ``run.export`` and ``perdure.export`` give: names, cards, the classic dict, several models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import perdure
from perdure.cli.main import main
from perdure.core.errors import CannotCarryError, ConfigError, DiskFullError, UnreadableError


def trained(root: Path, **more) -> perdure.Run:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    optimizer = torch.optim.Adam(model.parameters())
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)
    with perdure.Run("flowers", root=root) as run:
        run.track(model=model, optimizer=optimizer, scheduler=scheduler, **more)
        for _ in run.epochs(1):
            for x in run.batches(torch.randn(4, 2, 3)):
                loss = model(x).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                run.log(loss=loss)
            scheduler.step()
    run.model, run.optimizer = model, optimizer
    return run


def test_the_files_carry_run_and_step_and_the_card_says_where_they_come_from(tmp_path: Path) -> None:
    run = trained(tmp_path)
    files = run.export(example=torch.ones(2, 3))
    folder = tmp_path / "flowers" / "export"
    assert files == {f: folder / f"flowers-step-000000004.{f}" for f in ("pth", "safetensors")}
    card = json.loads((folder / "model-card.json").read_text())["models"][0]
    assert (card["run"], card["step"], card["position"]) == ("flowers", 4, {"epoch": 1, "batch": 0})
    assert card["metrics"].keys() == {"loss"}
    assert card["libraries"]["torch"] == torch.__version__
    assert card["hardware"] == {"device": "cpu"}
    written = {name: (folder / name).stat().st_mtime_ns for name in ("flowers-step-000000004.pth", ".proofs.json")}

    with perdure.Run("flowers", root=tmp_path) as again:  # the script is run once more: nothing is made again
        again.track(model=run.model)
        for _ in again.epochs(1):
            pytest.fail("it is finished")
        assert again.export(example=torch.ones(2, 3)) == files
    assert {name: (folder / name).stat().st_mtime_ns for name in written} == written


def test_the_classic_dict_goes_on_in_a_script_without_perdure(tmp_path: Path) -> None:
    run = trained(tmp_path)
    path = run.export(formats=["pth-classic"])["pth-classic"]
    assert path.name == "flowers-step-000000004-classic.pth"
    classic = torch.load(path, weights_only=True)
    assert (classic["epoch"], classic["step"]) == (1, 4)
    assert classic.keys() >= {"model_state_dict", "optimizer_state_dict", "scheduler_state_dict", "metrics"}
    optimizer = torch.optim.Adam(run.model.parameters())
    optimizer.load_state_dict(classic["optimizer_state_dict"])
    ours, theirs = run.optimizer.state_dict()["state"], optimizer.state_dict()["state"]
    assert all(torch.equal(ours[i][key], theirs[i][key]) for i in ours for key in ours[i])


def test_what_the_safe_loader_would_refuse_in_a_classic_dict_is_named(tmp_path: Path) -> None:
    run = trained(tmp_path)
    run.optimizer.param_groups[0]["schedule"] = print
    with pytest.raises(
        CannotCarryError, match=r"optimizer_state_dict\.param_groups\[0\]\.schedule: it is a builtin"
    ):
        run.export(formats=["pth-classic"])


def test_several_models_have_their_names_in_their_files_and_an_example_each(tmp_path: Path) -> None:
    nets = {"g": nn.Linear(2, 3), "d": nn.Linear(3, 1)}
    with perdure.Run("gan", root=tmp_path) as run:
        run.track(nets=nets)
        for _ in run.epochs(0):
            pass
    with pytest.raises(ConfigError, match=r"whose inputs the example is(.|\n)*'nets.g'"):
        run.export(example=torch.ones(1, 2))
    files = run.export("best", example={"nets.g": torch.ones(1, 2)}, formats=["safetensors"])
    folder = tmp_path / "gan" / "export"
    assert files == {
        f"nets.{key}.safetensors": folder / f"gan-best-nets.{key}-step-000000000.safetensors" for key in nets
    }
    card = json.loads((folder / "model-card.json").read_text())
    assert sorted(len(model["signature"]["outputs"]) for model in card["models"]) == [0, 1]


def test_a_model_under_a_key_that_no_file_can_be_called_comes_out_all_the_same(tmp_path: Path) -> None:
    nets = {"../up": nn.Linear(2, 3), "a\nb é": nn.Linear(3, 1)}
    with perdure.Run("odd", root=tmp_path) as run:
        run.track(nets=nets)
        for _ in run.epochs(0):
            pass
    files = run.export(formats=["pth"])
    folder = tmp_path / "odd" / "export"
    assert files == {
        "nets.../up.pth": folder / "odd-nets...%2Fup-step-000000000.pth",
        "nets.a\nb é.pth": folder / "odd-nets.a%0Ab é-step-000000000.pth",
    }
    assert main(["export", "odd", "--root", str(tmp_path), "--format", "safetensors"]) == 0
    assert {path.stem for path in folder.glob("*.safetensors")} == {path.stem for path in files.values()}


class Branching(nn.Linear):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else x


def test_a_model_that_fails_does_not_cost_the_others_and_an_average_takes_the_inputs_of_its_model(
    tmp_path: Path,
) -> None:
    good, bad = nn.Linear(2, 3), Branching(2, 2)
    with perdure.Run("gan", root=tmp_path) as run:
        run.track(bad=bad, good=good, average=AveragedModel(good))
        for _ in run.epochs(0):
            pass
    with pytest.raises(CannotCarryError, match="graph of Branching"):
        run.export(example={"good": torch.ones(1, 2), "bad": torch.ones(1, 2)}, formats=["pth", "pt2"])
    names = {path.name for path in (tmp_path / "gan" / "export").glob("gan-*.p*")}
    weights = {f"gan-{name}-step-000000000.pth" for name in ("bad", "good", "average")}
    assert names == weights | {f"gan-{name}-step-000000000.pt2" for name in ("good", "average")}


def test_an_export_stays_within_the_disk_budget_of_the_run(tmp_path: Path) -> None:
    with perdure.Run("small", root=tmp_path, limits=perdure.Limits(disk="2 MB")) as run:
        run.track(model=nn.Linear(2, 2))
        for _ in run.epochs(0):
            pass
    with pytest.raises(DiskFullError) as caught:
        run.export()  # two files, and a megabyte of head room for each
    assert caught.value.free_bytes < 2_000_000
    assert run.export(formats=["pth"])["pth"].exists()


def test_any_model_is_exported_without_a_run(tmp_path: Path) -> None:
    model = nn.DataParallel(nn.Linear(2, 2))
    files = perdure.export(model, tmp_path / "out", "net", formats=["pth"])
    assert files == {"pth": tmp_path / "out" / "net.pth"}
    assert torch.load(files["pth"], weights_only=True).keys() == {"weight", "bias"}
    with pytest.raises(ConfigError, match=r"a torch\.nn\.Module or a keras\.Model, got OrderedDict"):
        perdure.export(model.state_dict(), tmp_path)
    with pytest.raises(ConfigError, match="stem of a file name"):
        perdure.export(model, tmp_path, "a/b")


@pytest.mark.filterwarnings("ignore:Lazy modules:UserWarning")
def test_a_model_without_shapes_and_a_folder_that_is_a_file_are_said_in_plain_words(tmp_path: Path) -> None:
    with pytest.raises(
        CannotCarryError, match=r"cannot hold weight: it has no shape yet(.|\n)*call the model once"
    ):
        perdure.export(nn.LazyLinear(3), tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UnreadableError, match="cannot be written to .*file"):
        perdure.export(nn.Linear(2, 2), tmp_path / "file")
