"""Files of what anyone recorded: JSON with a hash, of the form that a JSON Schema beside this module describes.

The hash tells a file that was changed by accident or by hand from one that was recorded, not one person's from
another's.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from membench.core.extras import require
from membench.core.files import write_whole

ROWS, PLANNERS = "rows", "planners"
"""Names of schemas."""


class Refused(ValueError):
    """A file is not what its schema describes, or was changed; the message is the reason."""


def schema(name: str) -> dict[str, Any]:
    """Return a JSON Schema by its name."""
    return json.loads(Path(__file__).with_name(f"{name}.schema.json").read_text())


def write_recorded(path: Path, name: str, content: Mapping[str, Any]) -> None:
    """Write what was recorded with the version of its form, its origin and its hash.

    Args:
        name: one of `ROWS` and `PLANNERS`.

    Raises:
        OSError: the file cannot be written.
    """
    from membench.sweep.results.provenance import provenance

    content = {"form": schema(name)["properties"]["form"]["const"], **content, "origin": provenance()}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps({**content, "sha256": hash_of(content)}, indent=1) + "\n")


def hash_of(content: Mapping[str, Any]) -> str:
    """Return the hash of a file's content, its own hash left out."""
    text = json.dumps({key: value for key, value in content.items() if key != "sha256"}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def read_recorded(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the name of a file's schema, that of planners where it has a planner, and the file's content.

    Raises:
        MembenchError: the package that reads schemas is not installed.
        Refused: it is not of the schema, or was changed.
    """
    require("rows", "a check of rows")
    from fastjsonschema import JsonSchemaValueException, validate

    try:
        content = json.loads(path.read_text(), parse_constant=_refuse_constant)
    except (OSError, ValueError) as error:
        raise Refused(f"it is not JSON: {error}") from error
    name = PLANNERS if isinstance(content, dict) and "planner" in content else ROWS
    try:
        validate(schema(name), content)
    except JsonSchemaValueException as error:
        found = "" if isinstance(error.value, dict | list) else f", not {error.value!r}"
        raise Refused(f"it is not of the schema: {error.message.removeprefix('data.')}{found}") from error
    if content["sha256"] != hash_of(content):
        raise Refused("its hash is not that of its content: it was changed after it was recorded")
    return name, content


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not a number of JSON")
