import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

from tests.unit.training.tiny_runs import new_run, tiny
from training import cli
from training.lab.bench import measure
from training.lab.verify import (
    CASES,
    Result,
    recipe_of,
    verify_all,
)
from training.runs.loop import train


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["training", *arguments])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return int(caught.value.code or 0)


def test_networks_and_recipes_are_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "networks") == 0
    printed = capsys.readouterr().out
    assert "1,334,560" in printed
    assert "39.09" in printed
    assert run(monkeypatch, "recipes") == 0
    assert "sdgm-paper" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["train", "nonsense"], 2, "no recipe 'nonsense'"),
        (["train", "synthetic", "--set", "optim.lrr=1"], 2, "did you mean 'lr'?"),
        (
            ["train", "synthetic", "--set", "loss.margin=1.0"],
            2,
            "with --set loss.margin=1.0: loss.margin: exp",
        ),
        (
            ["train", "synthetic", "--set", "seed=-1"],
            2,
            "synthetic.toml with --set seed=-1: seed: expected",
        ),
        (["train", "sdgm-paper"], 65, "expected a patch store"),
        (["export", "nowhere", "-o", "m"], 2, "nowhere/recipe.toml: cannot be read"),
        (["verify", "sdgn"], 2, "did you mean 'sdgm'?"),
        (["plot", "nowhere"], 2, "nowhere/recipe.toml"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str],
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, *arguments) == code
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.startswith("error: ")
    assert printed.count("\n") == 1


def test_version_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--version") == 0
    assert re.fullmatch(r"matchserve \d+\.\d+\S*\n", capsys.readouterr().out)


def test_every_command_and_option_has_a_help_text() -> None:
    def commands(group: TyperGroup, path: str) -> Iterator[tuple[str, Any]]:
        for name, command in group.commands.items():
            if isinstance(command, TyperGroup):
                yield from commands(command, f"{path} {name}")
            else:
                yield f"{path} {name}", command

    group = typer.main.get_command(cli.app)
    assert isinstance(group, TyperGroup)
    found = dict(commands(group, "training"))
    assert {"training train", "training study", "training blend", "training export"} <= set(found)
    for path, command in found.items():
        assert command.help, path
        for parameter in command.params:
            text = getattr(parameter, "help", None)
            assert text, f"{path} {parameter.name}"
            assert len(text.split()) > 1, f"{path} {parameter.name}: {text}"


def test_train_then_resume_then_export(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text(tiny(run={"steps": 2}).to_toml())
    out = ["--out", str(tmp_path / "runs")]
    assert run(monkeypatch, "train", str(recipe), *out) == 0
    run_dir = Path(capsys.readouterr().out.strip())
    assert (run_dir / "final.safetensors").exists()
    assert run(monkeypatch, "train", str(run_dir)) == 0
    assert run(monkeypatch, "export", str(run_dir), "-o", str(tmp_path / "m" / "mine")) == 0
    assert "on 1000 patches" in capsys.readouterr().out
    assert run(monkeypatch, "plot", str(run_dir)) == 0
    assert (run_dir / "plots" / "curves.png").exists()


def test_a_runs_recipe_cannot_be_changed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run_dir = new_run(tmp_path)
    assert run(monkeypatch, "train", str(run_dir), "--set", "optim.lr=1") == 2
    printed = capsys.readouterr().err
    assert f"the recipe of the run {run_dir} cannot be changed" in printed
    assert printed.count("\n") == 1


def test_bench_measures_both_loops(tmp_path: Path) -> None:
    found = measure(tiny(), tmp_path, blocks=1)
    assert found.loop > 0
    assert found.bare > 0
    assert found.share == pytest.approx(found.loop / found.bare)
    assert found.cpu_share > 0


def test_verify_cases_cover_the_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = {recipe_of(name).loss.name for name in CASES}
    assert {"sdgm", "cdf", "adasample", "stochastic_siamese", "hardnet"} <= losses
    assert Result("x", 0.1, 0.2, (0.05, 0.2), 1.0).passed
    assert not Result("x", 0.3, 0.2, (0.05, 0.2), 1.0).passed
    assert not Result("x", 0.01, 0.2, (0.05, 0.2), 1.0).passed


def test_verify_runs_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.lab.verify.STEPS", 2)
    monkeypatch.setattr("training.lab.verify.PAIRS", 200)
    monkeypatch.setattr("training.lab.verify.VALIDATION", "synthetic:12:100")
    (result,) = verify_all(["hardnet"])
    assert result.name == "hardnet"
    assert 0 < result.sift < 1
    assert 0 < result.fpr95 < 1


def test_a_run_directory_is_resumed_by_its_path(tmp_path: Path) -> None:
    run_dir = new_run(tmp_path, run={"steps": 1})
    assert train(run_dir) == run_dir
