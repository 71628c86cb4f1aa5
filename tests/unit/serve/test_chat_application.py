"""The example to copy: its Serve config says only what Ray Serve and the application understand."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError
from ray.serve.schema import ServeDeploySchema
from ruamel.yaml import YAML

from serve.chat.app import app
from warpbeam.serve.app import AppArgs, served_name

CONFIG = Path(__file__).parents[3] / "serve" / "chat" / "serve.yaml"


def test_the_config_is_valid() -> None:
    config = ServeDeploySchema.model_validate(YAML(typ="safe").load(CONFIG))
    (application,) = config.applications
    assert application.import_path == "serve.chat.app:app"
    args = AppArgs.model_validate(application.args)
    assert args.require_token, "it listens on all addresses"
    assert served_name(args) == "chat"


def test_the_command_lines_words_are_understood() -> None:
    """`serve run` passes everything as text."""
    words = {"model": "/models/tiny/", "replicas": "2", "gpus_per_replica": "0.5"}
    args = AppArgs.model_validate(words)
    assert (served_name(args), args.replicas, args.gpus_per_replica) == ("tiny", 2, 0.5)
    assert app(words) is not None
    with pytest.raises(ValidationError, match="modle"):
        app({"modle": "/models/tiny"})
