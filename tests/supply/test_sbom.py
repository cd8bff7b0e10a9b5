"""The bills of materials: valid CycloneDX, complete, and the same for the same contents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cyclonedx.schema
import jsonschema_rs
import pytest
from cyclonedx.output.json import JsonV1Dot6

from supply import lock, sbom

SCHEMAS = Path(cyclonedx.schema.__file__).parent / "_res"


def made(image: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(JsonV1Dot6(sbom.make(image)).output_as_string())
    return document


def schema(name: str) -> Any:
    return json.loads((SCHEMAS / f"{name}.SNAPSHOT.schema.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("image", ["cpu", "gpu"])
def test_a_bill_of_materials_is_valid_and_complete(image: str) -> None:
    document = made(image)
    base = "http://cyclonedx.org/schema/"
    names = ("spdx", "jsf-0.82", "cryptography-defs")
    resources = [(f"{base}{name}.SNAPSHOT.schema.json", schema(name)) for name in names]
    registry = jsonschema_rs.Registry(resources)
    validator = jsonschema_rs.Draft7Validator(schema("bom-1.6"), registry=registry)
    assert not [error.message for error in validator.iter_errors(document)]
    assert list(validator.iter_errors({**document, "version": "one"}))
    pins = lock.read(lock.FOLDER / f"{image}.txt")
    libraries = {
        (c["name"], c["version"], c["hashes"][0]["content"])
        for c in document["components"]
        if c["type"] == "library"
    }
    assert libraries == {(pin.name, pin.version, pin.sha256) for pin in pins}
    assert all(
        c["purl"] == f"pkg:pypi/{c['name']}@{c['version']}"
        for c in document["components"]
        if c["type"] == "library"
    )


def test_models_are_listed_with_the_hash_of_their_file() -> None:
    models = {
        c["name"]: c["hashes"][0]["content"]
        for c in made("cpu")["components"]
        if c["type"] == "machine-learning-model"
    }
    cards = [json.loads(path.read_text()) for path in sbom.MODELS.glob("*/card.json")]
    assert models == {card["name"]: card["sha256"] for card in cards}


def test_licences_are_those_of_the_installed_packages() -> None:
    with_licence = [c for c in made("cpu")["components"] if c.get("licenses")]
    fastapi = next(c for c in with_licence if c["name"] == "fastapi")
    assert fastapi["licenses"] == [{"license": {"id": "MIT"}}]
    assert len(with_licence) >= 20


def test_the_same_contents_have_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    first, second = (JsonV1Dot6(sbom.make("cpu")).output_as_string() for _ in range(2))
    assert first == second
    assert "2023-11-14T22:13:20" in first
    assert made("cpu")["serialNumber"] != made("gpu")["serialNumber"]
