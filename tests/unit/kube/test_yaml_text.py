"""YAML that a person reviews and kubectl reads as it was meant."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from warpbeam.kube.yaml_text import WHY, explained, plain_yaml

LEAVES = st.one_of(
    st.text(max_size=20), st.integers(), st.booleans(), st.none(), st.sampled_from(["on", "1:30", "0x1", "2.58"])
)
TREES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)


@pytest.mark.parametrize(
    "text", ["yes", "no", "on", "off", "null", "~", "1e3", "0o17", "12:30", "2.58.0", "true", "", " a"]
)
def test_texts_stay_texts_for_kubectl(text: str) -> None:
    """kubectl reads YAML 1.1, as PyYAML does."""
    assert yaml.safe_load(plain_yaml({"value": text})) == {"value": text}


@given(st.dictionaries(st.sampled_from(["spec", "suspend", "metadata", "a"]), TREES, max_size=3))
def test_content_survives_with_its_comments(content: dict[str, Any]) -> None:
    if any(char in str(content) for char in "\x85\u2028\u2029\ufeff\\x\\r"):
        return  # characters that YAML 1.1 itself treats as line breaks
    assert list(yaml.safe_load_all(explained([content], ["header"]))) == [content]


def test_a_key_is_explained_once_and_where_it_stands() -> None:
    inner = {"suspend": True, "workers": [{"suspend": True}]}
    text = explained([{"spec": inner}], ["one", "", "two"])
    assert text.splitlines() == [
        "# one",
        "#",
        "# two",
        "---",
        "spec:",
        f"  # {WHY['spec.suspend']}",
        "  suspend: true",
        "  workers:",
        "    - suspend: true",
    ]


def test_comments_are_indented_as_their_keys() -> None:
    text = explained([{"containers": [{"name": "a", "lifecycle": {}}]}], [])
    assert f"    # {WHY['containers.lifecycle']}\n    lifecycle: {{}}" in text
