"""The joint distribution of several typed fields, such as a verdict, a label and a score.

The fields are the members of a JSON object in the given order. The object has finitely many values.
`smc.distribution` gives the posterior over all combinations, and `Posterior.fields` the marginal
distributions. The language model conditions later fields on earlier ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Literal, get_args, get_origin

from gcd import json_schema
from smc._models.checks import check_model, check_thoughts
from smc._models.protocol import LanguageModel, Messages, Prompt, encode_prompt
from smc._results.fields import canonical_json
from smc._results.posterior import Posterior
from smc._search.choosing import CERTIFIED
from smc._search.distributions import PREFIXES, distribution


def joint(
    lm: LanguageModel,
    prompt: Prompt | Messages,
    fields: Mapping[str, Any],
    *,
    whitespace: str = "compact",
    spellings: str = "all",
    temperature: float | int = 1.0,
    max_prefixes: int = PREFIXES,
    certify: float | int = CERTIFIED,
    max_rows: int = 256,
) -> Posterior:
    """Compute the joint posterior of several fields as the members of one JSON object.

    Args:
        lm: the language model.
        prompt: text, token ids (used as given), or messages for the chat template; it should ask
            for the object.
        fields: for each field name, in order, the possible values: `bool`, a range of integers such
            as `range(1, 6)` for a score, an enum, a `Literal[...]`, or a list of JSON scalars.
        whitespace: whitespace of the object, as in `gcd.json_schema`.
        spellings, temperature, max_prefixes, certify, max_rows: as in `smc.distribution`.

    Returns:
        The posterior over objects. `Posterior.fields` has the marginal distribution of each field,
        at the JSON pointer of the field's name.

    Raises:
        ValueError: there are no fields; or a field has no values, equal values, or values that are
            not JSON scalars. Errors of `smc.distribution` are raised, too.
    """
    if not isinstance(fields, Mapping):
        raise ValueError(
            f"expected a mapping from field names to values, got {type(fields).__name__}"
        )
    if not fields:
        raise ValueError("expected at least one field, got an empty mapping")
    check_model(lm)
    ids = encode_prompt(lm, prompt)
    check_thoughts(lm, prompt if isinstance(prompt, str) else ids)
    members = {name: {"enum": _values(name, given)} for name, given in fields.items()}
    schema = {
        "type": "object",
        "properties": members,
        "required": list(members),
        "additionalProperties": False,
    }
    [found] = distribution(
        lm, [ids], json_schema(schema, whitespace=whitespace), spellings=spellings,
        temperature=temperature, max_prefixes=max_prefixes, certify=certify, max_rows=max_rows,
    )  # fmt: skip
    return found


def _values(name: Any, given: Any) -> list[Any]:
    """Return the values of a field as JSON scalars."""
    if not isinstance(name, str):
        raise ValueError(f"expected field names as strings, got {name!r}")
    values: list[Any]
    if given is bool:
        values = [False, True]
    elif isinstance(given, type) and issubclass(given, Enum):
        values = [member.value for member in given]
    elif get_origin(given) is Literal:
        values = [each.value if isinstance(each, Enum) else each for each in get_args(given)]
    elif isinstance(given, Sequence) and not isinstance(given, str | bytes):
        values = list(given)  # including ranges
    else:
        raise ValueError(
            f"expected field {name!r} to be bool, a range, an enum, a Literal or a list of values; "
            f"got {given!r}"
        )
    if not values:
        raise ValueError(
            f"expected field {name!r} to have at least one value, got none; list its values"
        )
    seen: dict[str, Any] = {}
    for value in values:
        is_scalar = value is None or isinstance(value, str | bool | int | float)
        if not is_scalar or (isinstance(value, float) and not math.isfinite(value)):
            raise ValueError(
                f"expected field {name!r} to have strings, finite numbers, booleans or None, "
                f"got {value!r}"
            )
        written = canonical_json(value)
        if written in seen:
            raise ValueError(
                f"expected distinct values in field {name!r}, got {seen[written]!r} and {value!r}, "
                "which are equal; pass each value once"
            )
        seen[written] = value
    return values
