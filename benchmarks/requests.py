"""Requests with known answers, for `benchmarks.values`, made from templates by a fixed seed.

Four groups, each with as many requests as asked for (tool calls: as many as xLAM's records here):

    extraction    a paragraph; free text (a title or summary), dates, enumerations, lists, numbers
    tool calls    a request and tools from xLAM (data/xlam)
    labels        a sentence and the labels to choose from
    forms         a paragraph with the answers to a form of 5 to 15 fields

The even requests of a group are for tuning, the odd ones for the final comparison. Names, places
and sentences are invented.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from benchmarks.common import tool_calls
from experiments.tool_calling.conversion import to_json_schema_tools
from experiments.tool_calling.task import compact_prompt

SEED = 20261129
GROUPS = ("extraction", "tool calls", "labels", "forms")

FIRST = "Maria Tom Aisha Pedro Ingrid Kofi Lena Marco Yuki Nadia Oscar Priya Felix Ruth Ivan Clara"
LAST = "Lopez Weber Khan Almeida Larsen Mensah Fischer Rossi Tanaka Haddad Lind Nair Braun Stone"
CITIES = ["Berlin", "Lisbon", "Toronto", "Osaka", "Nairobi", "Bergen", "Lyon", "Austin", "Krakow",
          "Quito", "Dublin", "Perth"]  # fmt: skip
STREETS = ["Oak Street", "Mill Road", "Harbor Lane", "Station Square", "Garden Avenue",
           "Church Hill"]  # fmt: skip
MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September",
          "October", "November", "December"]  # fmt: skip
PRODUCTS = "kettle,desk lamp,backpack,keyboard,blender,tent,headset,office chair,coffee grinder"
BRANDS = ["Orbit", "Nordal", "Vexa", "Pinewood", "Halcyon", "Trion", "Lumo", "Castor"]
SERVICES = "checkout service,login page,search index,mobile app,payment gateway,mail server"
COMPANIES = "Brightwater,Kestrel Labs,Fenwick Foods,Alder Logistics,Sunridge Energy,Papyrus Books"


class Request(NamedTuple):
    """A request, the kind of its answer, and the right answer.

    Attributes:
        group: one of `GROUPS`.
        prompt: messages, or the text of a prompt.
        kind: a JSON schema, a list of tools, or a list of labels.
        value: the right value.
        free: names of the fields with free text, which have no known value.
        source: the text whose words a free text may use.
        budget: maximum number of tokens of an answer.
    """

    group: str
    prompt: Any
    kind: Any
    value: Any
    free: tuple[str, ...]
    source: str
    budget: int


def requests(count: int = 101, seed: int = SEED) -> list[Request]:
    """Return the requests of all groups, `count` of each template group."""
    rng = random.Random(seed)
    found = [_extraction(rng, i) for i in range(count)]
    found += _tool_calls(count)
    found += [_label(rng, i) for i in range(count)]
    return found + [_form(rng, i) for i in range(count)]


def _person(rng: random.Random) -> str:
    return f"{rng.choice(FIRST.split())} {rng.choice(LAST.split())}"


def _people(rng: random.Random, count: int) -> list[str]:
    return [f"{first} {rng.choice(LAST.split())}" for first in rng.sample(FIRST.split(), count)]


def _date(rng: random.Random) -> tuple[str, str]:
    """Return a date as a text has it, and as `YYYY-MM-DD`."""
    year, month, day = rng.randint(2019, 2027), rng.randint(1, 12), rng.randint(1, 28)
    name = MONTHS[month - 1]
    written = rng.choice((f"{day} {name} {year}", f"{name} {day}, {year}"))
    return written, f"{year}-{month:02}-{day:02}"


TEXT: dict[str, Any] = {"type": "string"}
DATE = {"type": "string", "format": "date"}
NAMES = {"type": "array", "items": TEXT}
YES = {"type": "boolean"}


def _one_of(*values: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(values)}


def _number(least: int, most: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": most}


def _object(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object", "properties": fields, "required": list(fields),
        "additionalProperties": False,
    }  # fmt: skip


def _incident(rng: random.Random) -> tuple[str, dict[str, Any], dict[str, Any], str]:
    date, iso = _date(rng)
    people = _people(rng, rng.randint(1, 3))
    service, city = rng.choice(SERVICES.split(",")), rng.choice(CITIES)
    severity = rng.choice(("low", "medium", "high"))
    minutes = rng.randint(5, 95)
    cause = rng.choice(("a bad deploy", "an expired certificate", "a full disk", "a power cut"))
    text = (
        f"On {date} the {service} in {city} was down for {minutes} minutes after {cause}. "
        f"{' and '.join(people)} repaired it. The severity was {severity}."
    )
    fields = {
        "title": TEXT, "date": DATE, "severity": _one_of("low", "medium", "high"),
        "minutes": _number(0, 1000), "people": NAMES,
    }  # fmt: skip
    values = {"date": iso, "severity": severity, "minutes": minutes, "people": people}
    return text, fields, values, "title"


def _review(rng: random.Random) -> tuple[str, dict[str, Any], dict[str, Any], str]:
    product = f"{rng.choice(BRANDS)} {rng.choice(PRODUCTS.split(','))}"
    stars = rng.randint(1, 5)
    good = rng.choice(("It looks good", "It is easy to clean", "It arrived quickly"))
    bad = rng.choice(("it is rather loud", "the lid is loose", "the manual is useless"))
    again = stars > 3
    month = rng.choice(MONTHS)
    text = (
        f"I bought the {product} in {month}. {good}, but {bad}. {stars} out of 5 stars, "
        f"and I would {'buy it again' if again else 'not buy it again'}."
    )
    fields = {
        "product": TEXT, "summary": TEXT, "rating": _number(1, 5), "would_buy_again": YES,
        "month": _one_of(*MONTHS),
    }  # fmt: skip
    values = {"product": product, "rating": stars, "would_buy_again": again, "month": month}
    return text, fields, values, "summary"


def _meeting(rng: random.Random) -> tuple[str, dict[str, Any], dict[str, Any], str]:
    date, iso = _date(rng)
    people, room = _people(rng, rng.randint(2, 3)), rng.randint(2, 60)
    about = rng.choice(
        ("the budget for the new warehouse", "hiring two engineers", "the delay of the spring "
         "catalog", "moving the archive to another building", "the results of the survey")
    )  # fmt: skip
    kind = rng.choice(("decision", "information", "planning"))
    text = (
        f"The meeting on {date} in room {room} was about {about}. {', '.join(people[:-1])} and "
        f"{people[-1]} took part. Kind of meeting: {kind}."
    )
    fields = {
        "topic": TEXT, "date": DATE, "room": _number(1, 99), "attendees": NAMES,
        "kind": _one_of("decision", "information", "planning"),
    }  # fmt: skip
    values = {"date": iso, "room": room, "attendees": people, "kind": kind}
    return text, fields, values, "topic"


def _news(rng: random.Random) -> tuple[str, dict[str, Any], dict[str, Any], str]:
    date, iso = _date(rng)
    city, company = rng.choice(CITIES), rng.choice(COMPANIES.split(","))
    jobs = rng.randint(20, 900)
    what = rng.choice(("opens a factory", "closes a warehouse", "builds a training center"))
    text = (
        f"{city}, {date}. {company} {what} in {city}. The company says that {jobs} jobs depend on "
        f"it. {_person(rng)}, who leads {company}, announced the plan at a press conference."
    )
    fields = {
        "headline": TEXT,
        "company": TEXT,
        "city": TEXT,
        "date": DATE,
        "jobs": _number(0, 9999),
    }
    values = {"company": company, "city": city, "date": iso, "jobs": jobs}
    return text, fields, values, "headline"


EXTRACTIONS: tuple[Callable[..., Any], ...] = (_incident, _review, _meeting, _news)


def _extraction(rng: random.Random, number: int) -> Request:
    text, fields, values, free = EXTRACTIONS[number // 2 % len(EXTRACTIONS)](rng)
    return Request("extraction", _asks(text, fields), _object(fields), values, (free,), text, 100)


def _asks(text: str, fields: dict[str, Any]) -> list[dict[str, str]]:
    names = [f"{name}{_hint(schema)}" for name, schema in fields.items()]
    content = f"{text}\n\nExtract as JSON with the fields {', '.join(names[:-1])} and {names[-1]}."
    return [{"role": "user", "content": content}]


def _hint(schema: dict[str, Any]) -> str:
    """Return what a person would add to a field's name."""
    if schema == DATE:
        return " (YYYY-MM-DD)"
    if "enum" in schema and len(schema["enum"]) < 6:
        return f" ({' or '.join(schema['enum'])})"
    return {"boolean": " (true or false)", "array": " (a list)"}.get(schema["type"], "")


def _tool_calls(count: int) -> list[Request]:
    found = []
    for record, _ in tool_calls("json"):
        calls = [{"name": call.name, "arguments": dict(call.arguments)} for call in record.calls]
        tools = to_json_schema_tools(record.tools)
        prompt = compact_prompt(record, "json")
        found.append(Request("tool calls", prompt, tools, calls, (), record.query, 150))
    return found[:count]


LABELS: dict[str, dict[str, tuple[str, ...]]] = {
    "What is the sentiment?": {
        "positive": ("I love this {p}, it works perfectly.", "Great {p}, and it came early."),
        "negative": ("The {p} broke after two days.", "Terrible {p}, I want my money back."),
        "neutral": ("The {p} is made of steel.", "The {p} comes in three sizes."),
    },
    "What is the message about?": {
        "billing": ("I was charged twice for the {p}.", "Where is the invoice for my {p}?"),
        "shipping": ("My {p} hasn't arrived yet.", "Can you send the {p} to {c} instead?"),
        "returns": ("I want to send the {p} back.", "How do I return a {p} that I don't need?"),
        "technical problem": ("The {p} doesn't turn on.", "The {p} stops after a minute."),
    },
    "What is the topic?": {
        "sports": ("{c} won the final by two goals.", "The runner from {c} broke the record."),
        "politics": ("The mayor of {c} lost the election.", "Parliament in {c} passed a new law."),
        "business": ("A bank in {c} bought its rival.", "Shares of the {p} maker fell."),
        "weather": ("It will rain in {c} all week.", "A storm reached {c} in the night."),
    },
    "How urgent is the message?": {
        "urgent": ("Please call me at once, there is a fire in {c}.", "We need help right now!"),
        "can wait": ("No hurry, but the {p} needs a new cable some day.", "Whenever you have time, "
                     "please send me the catalog."),
    },
}  # fmt: skip


def _label(rng: random.Random, number: int) -> Request:
    question, labels = list(LABELS.items())[number // 2 % len(LABELS)]
    label = rng.choice(list(labels))
    product = f"{rng.choice(BRANDS)} {rng.choice(PRODUCTS.split(','))}"
    text = rng.choice(labels[label]).format(p=product, c=rng.choice(CITIES))
    content = f'"{text}"\n\n{question} Answer with one of: {", ".join(labels)}.'
    return Request(
        "labels", [{"role": "user", "content": content}], list(labels), label, (), text, 12
    )


def _form(rng: random.Random, number: int) -> Request:
    """Make a form with the first fields of a list of 15, in a random order."""
    born, born_iso = _date(rng)
    start, start_iso = _date(rng)
    person, city = _person(rng), rng.choice(CITIES)
    first, last = person.split()
    email = f"{first.lower()}.{last.lower()}@{rng.choice(('mail', 'post', 'inbox'))}.example"
    street = f"{rng.randint(1, 99)} {rng.choice(STREETS)}"
    phone = f"+{rng.randint(10, 99)} {rng.randint(100, 999)} {rng.randint(1000, 9999)}"
    company, guests = rng.choice(COMPANIES.split(",")), rng.randint(1, 8)
    meal = rng.choice(("vegan", "vegetarian", "fish", "meat"))
    parking, letter = rng.random() < 0.5, rng.random() < 0.5
    size, nights = rng.choice(("small", "medium", "large")), rng.randint(1, 14)
    language = rng.choice(("English", "German", "Spanish", "French"))
    every: list[tuple[str, dict[str, Any], Any, str]] = [
        ("name", TEXT, person, f"My name is {person}."),
        ("email", TEXT, email, f"Write to me at {email}."),
        ("city", TEXT, city, f"I live in {city}."),
        ("date_of_birth", DATE, born_iso, f"I was born on {born}."),
        ("meal", _one_of("vegan", "vegetarian", "fish", "meat"), meal, f"For dinner: {meal}."),
        ("nights", _number(1, 30), nights, f"I would like to stay for {nights} nights."),
        ("needs_parking", YES, parking,
         f"I {'need' if parking else 'do not need'} a parking spot."),
        ("arrival", DATE, start_iso, f"I arrive on {start}."),
        ("company", TEXT, company, f"I work for {company}."),
        ("phone", TEXT, phone, f"My phone number is {phone}."),
        ("street", TEXT, street, f"My address is {street}."),
        ("guests", _number(1, 20), guests, f"We will be {guests} people."),
        ("room_size", _one_of("small", "medium", "large"), size, f"A {size} room, please."),
        ("language", _one_of("English", "German", "Spanish", "French"), language,
         f"We speak {language}."),
        ("wants_newsletter", YES, letter,
         f"I {'want' if letter else 'do not want'} the newsletter."),
    ]  # fmt: skip
    chosen = rng.sample(every, rng.randint(5, 15))
    fields = {name: schema for name, schema, _, _ in chosen}
    text = " ".join(sentence for _, _, _, sentence in rng.sample(chosen, len(chosen)))
    return Request(
        "forms", _asks(text, fields), _object(fields), {n: v for n, _, v, _ in chosen}, (), text,
        30 + 25 * len(chosen),
    )  # fmt: skip


def leaves(value: Any, pointer: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the fields of a value: members of objects and of lists of objects, and whole lists."""
    if isinstance(value, dict):
        for name, below in value.items():
            yield from leaves(below, f"{pointer}/{name}")
    elif isinstance(value, list) and any(isinstance(each, dict) for each in value):
        for number, below in enumerate(value):
            yield from leaves(below, f"{pointer}/{number}")
    else:
        yield pointer, value


def same(left: Any, right: Any) -> bool:
    """Compare two values; texts without regard to case and surrounding spaces."""
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, str) and isinstance(right, str):
        return left.strip().casefold() == right.strip().casefold()
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    return bool(left == right)


if __name__ == "__main__":
    for each in requests():
        print(json.dumps(each._asdict()))
