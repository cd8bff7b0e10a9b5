"""Settings come from the environment, are checked, and are documented."""

from __future__ import annotations

from pathlib import Path

import pytest

from matchserve.errors import InvalidParameter
from matchserve.settings import PREFIX, Settings, load_settings, to_environment


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        monkeypatch.delenv(name)


def test_flags_beat_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MATCHSERVE_PORT", "9000")
    monkeypatch.setenv("MATCHSERVE_DEADLINE_S", "5")
    assert load_settings().port == 9000
    assert load_settings(port=9001, host=None).port == 9001
    assert load_settings().deadline_s == 5


@pytest.mark.parametrize(
    ("name", "value"),
    [("PORT", "70000"), ("MAX_KEYPOINTS", "0"), ("DEADLINE_S", "-1"), ("PROVIDER", "tpu")],
)
def test_a_bad_value_names_its_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(PREFIX + name, value)
    with pytest.raises(InvalidParameter, match=PREFIX + name):
        load_settings()


def test_a_misspelt_variable_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MATCHSERVE_DEADLINE", "5")
    with pytest.raises(InvalidParameter, match="MATCHSERVE_DEADLINE"):
        load_settings()


def test_a_worker_gets_the_same_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings(port=9002, api_keys="a,b", models_dir=Path("m"), strict=True)
    for name, value in to_environment(settings).items():
        monkeypatch.setenv(name, value)
    assert load_settings() == settings
    assert load_settings().keys() == ("a", "b")


def test_slots_follow_the_machine_and_the_settings() -> None:
    default = Settings().slots()
    assert default.running == Settings().cpus()
    assert default.waiting == 4 * default.running
    assert default.megapixels > 1
    chosen = Settings(max_running=3, max_waiting=0, max_running_megapixels=7).slots()
    assert (chosen.running, chosen.waiting, chosen.megapixels) == (3, 0, 7)
