"""Built-in problems of the convergence study.

A prompt of `toolcalls` is a request in toolcalls.jsonl, followed by the beginning of its answer, up
to a value. A prompt of `stories` is the beginning of a short story. The constraints are typical for
these positions: an enumeration, numbers in a range, an optional member, one of several names,
inflections of words in a sentence.

Budgets are *tight* (the tokens of the shortest answer, or a few more) or *loose* (every answer
fits, or as many tokens as keep the tree below `LOOSE` prefixes). If a value ends at a closing quote
or a full stop, all tokens that start with this character end the text, because their other
characters (a comma, a bracket) follow the value.

All problems were written before any was run, and all are reported.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gcd
import smc
from experiments.studies.convergence.problems import Problem, largest_budget, vocabulary_of
from experiments.tool_calling.answers import write_answer
from experiments.tool_calling.records import ToolRecord, build_prompt, read_xlam

LOOSE = 20_000
"""Largest tree of a loose budget: a tenth of the limit, so that all problems run in minutes."""

_REQUESTS = Path(__file__).with_name("toolcalls.jsonl")
_LONGEST = 40  # tokens of the longest answer

_PLACES = ("Oslo", "Munich", "Montreal", "Rio de Janeiro", "Cairo", "Copenhagen", "Paris")
_DEVICES = ("projector", "heater", "dishwasher", "lamp", "fridge", "television")
_TOOLS = (
    "assign_code_reviewer blend_two_colors block_phone_number blood_pressure_entry cylinder_volume "
    "dilute_solution estimate_mortgage_cost find_food_substitute get_dividend_yield "
    "get_podcast_episodes get_power_usage get_stadium_capacity invite_guest_to_event "
    "pollen_level_report polygon_interior_angle register_marathon_runner renew_ssl_certificate "
    "rent_music_instrument request_product_refund reserve_ferry_seat rhyme_finder "
    "river_length_lookup satellite_pass_times scale_recipe_servings water_garden_zone"
)
_NAMES = (
    "Lily Tom Tim Anna Ben Mia Sue Sam Max Lucy Sara Emma Jack Jane Molly Daisy Bella Rose Amy "
    "Kate Grace Sophie Elizabeth Charlotte"
)
_THINGS = (
    "dog cat bird bear tree ball frog fish duck truck rabbit flower butterfly elephant dinosaur "
    "squirrel house castle box cake"
)
_NUMBERS = "one two three four five six seven eight nine ten eleven twelve"


def builtin(
    suite: str, lm: smc.TransformersLM, tokenizer: Any, prompt_kind: str = "auto"
) -> list[Problem]:
    """Make the problems of a suite for a model, whose tokens determine the budgets.

    Args:
        suite: "toolcalls" or "stories".
        lm: the language model.
        tokenizer: its tokenizer.
        prompt_kind: kind of prompt for tool calls; see `experiments.tool_calling.records`.

    Raises:
        ValueError: no token of the model starts with the end of the suite's answers.
    """
    make = {"toolcalls": _toolcalls, "stories": _stories}[suite]
    return [
        replace(problem, budget=_budget(problem, lm, tokenizer))
        for problem in make(lm, tokenizer, prompt_kind)
    ]


# Placeholders for `_budget`: tokens beyond the shortest answer, or as many as fit.
_SHORTEST, _ONE_MORE, _THREE_MORE, _AS_MANY = 0, 1, 3, -1


def _budget(problem: Problem, lm: smc.TransformersLM, tokenizer: Any) -> int:
    eos_ids = problem.eos_ids or lm.vocabulary.eos_ids
    vocabulary = vocabulary_of(tokenizer, lm.vocabulary.size, tuple(eos_ids))
    constraint = gcd.lift(problem.language, vocabulary)
    if problem.budget == _AS_MANY:
        return largest_budget(constraint, LOOSE, _LONGEST)
    return constraint.fewest_tokens + problem.budget


def _closing(lm: smc.TransformersLM, text: str) -> tuple[int, ...]:
    """Return all tokens that start with `text`."""
    wanted = text.encode()
    texts = enumerate(lm.vocabulary.token_bytes)
    found = tuple(i for i, token in texts if token.startswith(wanted))
    if not found:
        raise ValueError(
            f"expected a token that begins with {text!r}, where answers of the built-in problems "
            "end, but the model has none; give other problems with task.problems=FILE.json"
        )
    return found


def _toolcalls(lm: smc.TransformersLM, tokenizer: Any, kind: str) -> list[Problem]:
    requests = {record.id: record for record in read_xlam(_REQUESTS).records}

    def begin(record: ToolRecord, before: str) -> str:
        """Return a record's prompt with the beginning of its answer, which ends with `before`."""
        answer = write_answer(record.calls, record.tools, "json")
        prompt = build_prompt(record, "json", tokenizer=tokenizer, kind=kind)
        return prompt + answer[: answer.index(before) + len(before)]

    def value(record: ToolRecord, name: str) -> Any:
        return record.calls[0].arguments[name]

    days = requests["renew_ssl_certificate"]
    pressure = requests["blood_pressure_entry"]
    pollen = requests["pollen_level_report"]
    power = requests["get_power_usage"]
    tools = requests["water_garden_zone"]
    places = sorted({*_PLACES, value(pollen, "place")})
    names = _TOOLS.split()
    end = gcd.literal("}}]")
    plants = gcd.choice(["grass", "birch", "ragweed"]) + gcd.literal('"')
    periods = gcd.choice(["today", "week", "month"]) + gcd.literal('"')
    return [
        Problem(
            "days, tight",
            begin(days, '"days": '),
            gcd.regex("[1-9][0-9]{0,2}") + end,
            _ONE_MORE,
            note=f"1 to 999 days; the request says {value(days, 'days')}, two digits fit",
        ),
        Problem(
            "blood pressure, tight",
            begin(pressure, '"systolic": '),
            gcd.regex('(9[0-9]|1[0-6][0-9]), "diastolic": ([5-9][0-9]|10[0-9])') + end,
            _SHORTEST,
            note="two numbers; only those of two digits fit",
        ),
        Problem(
            "place and plant, loose",
            begin(pollen, '"place": "'),
            gcd.choice(places) + gcd.literal('", "plant": "') + plants + end,
            _AS_MANY,
            note=f"{len(places)} places, 3 plants",
        ),
        Problem(
            "device and period, tight",
            begin(power, '"device": "'),
            gcd.choice(_DEVICES)
            + gcd.literal('"')
            + (gcd.literal(', "period": "') + periods).optional()
            + end,
            _THREE_MORE,
            note=f"{len(_DEVICES)} devices, and an optional member that does not fit",
        ),
        Problem(
            "name of a tool, loose",
            begin(tools, '"name": "'),
            gcd.choice(names),
            _AS_MANY,
            eos_ids=_closing(lm, '"'),
            note=f"{len(names)} tools, {len(tools.tools)} of them offered",
        ),
    ]


def _stories(lm: smc.TransformersLM, tokenizer: Any, kind: str) -> list[Problem]:
    del tokenizer, kind  # prompts are plain text
    stop = _closing(lm, ".")
    things = gcd.choice(_THINGS.split())
    return [
        Problem(
            "a girl's name, loose",
            "Once upon a time, there was a little girl named",
            gcd.choice([f" {name}" for name in _NAMES.split()]),
            _AS_MANY,
            eos_ids=stop,
            note="24 names, then a full stop",
        ),
        Problem(
            "what she saw, tight",
            "One day, Lily went to the park with her mom. She saw a",
            gcd.literal(" ") + gcd.regex("((red|blue|happy|scared|friendly) )?") + things,
            _ONE_MORE,
            eos_ids=stop,
            note="20 things, with or without one of 5 adjectives",
        ),
        Problem(
            "keywords, tight",
            "Once upon a time, there was a big house with a garden.",
            gcd.regex(
                " The (boy|girl|dog|cat) (play|jump|walk|look)(s|ed) (in|at|to) the "
                "(park|garden|house|tree)"
            ),
            _ONE_MORE,
            eos_ids=stop,
            note="inflections of four verbs in a sentence of six words",
        ),
        Problem(
            "how it ends, loose",
            "Tom and Lily were best friends.",
            gcd.regex(
                " They (played|laughed|danced|lived|smiled|were happy|were friends)"
                r"( together| all day| ever after| again)?\."
            ),
            _AS_MANY,
            note="35 last sentences, then the end of the text",
        ),
        Problem(
            "how old, tight",
            "It was Lily's birthday. She was",
            gcd.literal(" ") + gcd.choice(_NUMBERS.split()) + gcd.regex("( years old)?"),
            _ONE_MORE,
            eos_ids=stop,
            note="one to twelve, and two more words that do not fit",
        ),
    ]
