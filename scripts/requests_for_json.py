"""Convert requests for tool calls to requests for JSON, to distill an HMM from them.

    python -m scripts.requests_for_json FILE.jsonl requests.jsonl

The HMM of `+task=json_schema` must not be distilled from the requests that it is measured on. This
script creates other requests from records in xLAM's format: the arguments of the first call are the
answer, and the parameters of the called tool are the schema. It skips records without a call, with
parameters that aren't plain values, or with arguments that don't match the schema. If a request
asks for several calls, the answer covers only the first one; distillation uses only prompts and
schemas.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gcd
from experiments.harness.config import MAX_SKIPPED
from experiments.harness.processes import errors_in_one_line
from experiments.harness.records import at_most_skipped
from experiments.tool_calling.answers import in_declared_order, name_of, parameters_of
from experiments.tool_calling.records import ToolRecord, read_xlam

_TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}


def schema_request(record: ToolRecord) -> dict[str, Any] | None:
    """Return a record as a prompt, a schema and its answer, or None to skip it."""
    if not record.calls:
        return None
    call = record.calls[0]
    tools = [tool for tool in record.tools if name_of(tool) == call.name]
    if len(tools) != 1:
        return None
    properties, required = {}, []
    for name, given in parameters_of(tools[0]).items():
        # A type is a text such as "str, optional".
        said = str(given.get("type")) if isinstance(given, Mapping) else ""
        kind = said.partition(",")[0].strip()
        if kind not in _TYPES:
            return None
        text = str(given.get("description") or "")
        properties[name] = {"type": _TYPES[kind], "description": text}
        if "default" not in given and "optional" not in said:
            required.append(name)
    schema = {
        "title": call.name,
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    answer = in_declared_order(call, tools).arguments
    allowed = gcd.json_schema(schema, whitespace="spaced")
    if not allowed.accepts(json.dumps(answer, ensure_ascii=False).encode()):
        return None
    return {"id": record.id, "prompt": record.query, "schema": schema, "completion": answer}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("records", type=Path, help="a JSON-lines file in xLAM's format")
    parser.add_argument("out", type=Path, help="output file for the requests, as JSON lines")
    parser.add_argument(
        "--max-skipped", type=float, default=MAX_SKIPPED, metavar="SHARE",
        help=f"fail above this share of malformed records (default: {MAX_SKIPPED})",
    )  # fmt: skip
    given = parser.parse_args()
    with errors_in_one_line(), at_most_skipped("--max-skipped", given.max_skipped):
        requests = [schema_request(record) for record in read_xlam(given.records).records]
        lines = [json.dumps(request) for request in requests if request is not None]
        given.out.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        print(f"wrote {len(lines)} requests from {len(requests)} records to {given.out}")


if __name__ == "__main__":
    main()
