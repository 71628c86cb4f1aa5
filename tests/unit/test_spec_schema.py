"""docs/schema is what the models say."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from warpbeam.spec_file import parse
from warpbeam.spec_problems import leaf_keys, model_at
from warpbeam.spec_schema import MODELS, render

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize("name", MODELS)
def test_schemas_are_current(name: str) -> None:
    written = (REPOSITORY / "docs/schema" / name).read_text()
    assert written == render(MODELS[name]), "run: python -m warpbeam.spec_schema docs/schema"


@pytest.mark.parametrize(
    ("schema", "file"), [("job-v1.json", "jobs/sft/job.yaml"), ("pool-v1.json", "cluster/pools/local.yaml")]
)
def test_our_files_pass_their_schema(schema: str, file: str) -> None:
    rules = json.loads((REPOSITORY / "docs/schema" / schema).read_text())
    jsonschema.validate(parse((REPOSITORY / file).read_text(), name=file).data, rules)


@pytest.mark.parametrize("name", MODELS)
def test_examples_in_errors_are_valid_themselves(name: str) -> None:
    """An error shows a field's first example as what to write: it must be accepted there."""
    model = MODELS[name]
    rules = json.loads(render(model))
    sections = {model} | {found for leaf in leaf_keys(model) if (found := model_at(model, tuple(leaf.split(".")[:-1])))}
    for section in sections:
        properties = rules["properties"] if section is model else rules["$defs"][section.__name__]["properties"]
        for field_name, field in section.model_fields.items():
            for example in field.examples or []:
                key = field.alias or field_name
                text = example if isinstance(example, str) else json.dumps(example)
                value = parse(f"{key}: {text}", name="example").data[key]
                jsonschema.validate(value, properties[key] | {"$defs": rules["$defs"]})
