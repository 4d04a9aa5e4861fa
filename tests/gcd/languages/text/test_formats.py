"""Formats against the official suite, the standard library, and rules written out by hand."""

from __future__ import annotations

import ipaddress
import itertools
import json
import re
import uuid
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from gcd import regex
from gcd._languages.text.formats import FORMATS, text_format
from tests.gcd.languages.text.readings import agrees, known
from tests.gcd.oracles import shared
from tests.gcd.random_strings import random_strings

SUITE = "data/json_schema_test_suite/draft2020-12/optional/format"
CHECKER = Draft202012Validator.FORMAT_CHECKER
CHECKED = sorted(set(FORMATS) & set(CHECKER.checkers))  # more with jsonschema's optional packages
LOOSE = {"time", "date-time", "hostname"}  # the wide pattern also matches texts that are invalid


# -- all formats ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_official_suite(name):
    groups = json.loads(shared(f"{SUITE}/{name}.json").read_text())
    cases = [(test["data"], test["valid"]) for group in groups for test in group["tests"]]
    cases = [(data, valid) for data, valid in cases if isinstance(data, str)]
    assert {valid for _, valid in cases} == {True, False}
    narrow, wide = known(name), known(name, widest=True)
    for data, valid in cases:
        if name == "hostname" and data.lower().startswith("xn--"):
            assert not narrow.accepts(data), data  # documented: Punycode is not validated
        else:
            assert narrow.accepts(data) == valid, data
            assert wide.accepts(data) == valid or name in LOOSE, data
        assert wide.accepts(data) or not valid, data


@pytest.mark.parametrize("name", FORMATS)
def test_narrow_lies_within_wide_and_only_pointers_leave_ascii(name):
    assert (known(name) - known(name, widest=True)).is_empty
    is_free = "pointer" in name or name == "uri-template"
    assert is_free or (known(name, widest=True) - regex(r"[\x00-\x7f]*")).is_empty


def test_where_the_readings_differ():
    differ = {name for name in FORMATS if known(name) != known(name, widest=True)}
    narrower = {"time", "date-time", "duration", "email", "hostname", "relative-json-pointer"}
    assert differ == narrower
    for name in ("regex", "idn-email", "iri", "Date", ""):
        assert text_format(name) is text_format(name, widest=True) is None


@pytest.mark.parametrize("name", CHECKED)
def test_what_is_generated_passes_the_checkers_of_jsonschema(name):
    assert {"date", "email", "ipv4", "ipv6", "uuid"} <= set(CHECKED)
    automaton = known(name)
    if name in ("date", "date-time"):
        automaton -= regex("(?s)0000.*")  # Python's calendar begins with the year 1
    for text in automaton.enumerate(300) + random_strings(automaton, 300):
        assert CHECKER.conforms(text.decode(), name), text


# -- pointers -------------------------------------------------------------------------------


def pointer(text: str) -> bool:
    tokens = text.split("/")
    return tokens[0] == "" and not any("~" in re.sub("~[01]", "", token) for token in tokens)


def relative_pointer(text: str) -> bool:
    match = re.match("0|[1-9][0-9]*", text)
    return match is not None and (text[match.end() :] == "#" or pointer(text[match.end() :]))


def test_pointers_by_their_tokens():
    texts = ["".join(s) for n in range(6) for s in itertools.product("/~01#é", repeat=n)]
    agrees("json-pointer", pointer, texts)
    agrees("relative-json-pointer", relative_pointer, texts)


def test_index_adjustments_are_for_the_wide_reading():
    for text in ("0+1", "0-12/a", "1+1#"):
        assert known("relative-json-pointer", widest=True).accepts(text)
        assert not known("relative-json-pointer").accepts(text)


# -- addresses ------------------------------------------------------------------------------


def is_address(kind: Callable[[str], object]) -> Callable[[str], bool]:
    def verdict(text: str) -> bool:
        try:
            kind(text)
        except ValueError:
            return False
        return "%" not in text and text.isascii()

    return verdict


def test_ipv4_octets():
    octets = [*map(str, range(300)), "", "00", "01", "001", "0256", "-1", "1e0"]
    agrees("ipv4", is_address(ipaddress.IPv4Address), [f"1.{n}.0.255" for n in octets])
    agrees("ipv4", is_address(ipaddress.IPv4Address), [".".join("1" * n) for n in range(7)])
    assert known("ipv4").count(15) == 2**32


def test_ipv6_forms():
    verdict = is_address(ipaddress.IPv6Address)
    shapes = ["".join(s) for n in range(16) for s in itertools.product("1:", repeat=n)]
    agrees("ipv6", verdict, shapes)
    agrees("ipv6", verdict, [f"{shape}1.2.3.4" for shape in shapes if len(shape) < 13])
    agrees(
        "ipv6", verdict, [f"::{s}" for s in ("aF09", "g", "00000", "0000", "1.2.3.256", "1.2.3")]
    )


def test_uuids():
    assert known("uuid").count(100) == 22**32
    for text in random_strings(known("uuid"), 100):
        assert str(uuid.UUID(text.decode())) == text.decode().lower()


def hostname(text: str) -> bool:
    labels = text.split(".")
    return len(text) <= 253 and all(
        re.fullmatch("[a-zA-Z0-9-]{1,63}", label)
        and label[0] != "-" != label[-1]
        and label[2:4] != "--"
        for label in labels
    )


def test_hostnames_by_their_labels():
    texts = ["".join(s) for n in range(8) for s in itertools.product("a0-.", repeat=n)]
    agrees("hostname", hostname, texts)


@settings(max_examples=200)
@given(
    st.lists(st.integers(1, 64) | st.sampled_from([1, 62, 63]), min_size=1, max_size=60),
    st.integers(250, 256),
)
@example([63, 63, 63, 61], 256)
@example([63, 63, 63, 62], 256)
@example([1] * 127, 256)
def test_hostnames_by_their_lengths(lengths, cut):
    text = ".".join("a" * length for length in lengths)[:cut]
    units = sum(len(label) // 16 + 1 for label in text.split("."))
    assert known("hostname").accepts(text) == (hostname(text) and units <= 15)
    assert known("hostname", widest=True).accepts(text) or not hostname(text)


def test_wide_hostnames_have_labels_of_every_kind():
    wide = known("hostname", widest=True)
    assert wide.accepts("xn--zca29lwxobi7a.ab--c")
    assert not wide.accepts("xn--.example")  # ends in a hyphen
    assert wide.accepts(".".join(["a" * 63] * 5))  # its length is not limited
    assert known("hostname").longest_length == 15 * 16 - 1


def mailbox(text: str) -> bool:
    """Parse an RFC 5321 mailbox from left to right."""
    if text.startswith('"'):
        quoted = re.match(r'"(?:[^"\\]|\\.)*"', text)
        local, rest = ("a", text[quoted.end() :]) if quoted else ("", "")
    else:
        local, sign, domain = text.partition("@")
        rest = sign + domain
    atoms_fine = all(re.fullmatch("[a-z!+-]+", atom) for atom in local.split("."))
    return atoms_fine and rest[:1] == "@" and (hostlike(rest[1:]) or bracketed(rest[1:]))


def hostlike(text: str) -> bool:
    return all(
        label and not set(label) - set("abz09-") and label[0] != "-" != label[-1]
        for label in text.split(".")
    )


def bracketed(text: str) -> bool:
    return text in ("[1.2.3.4]", "[ipv6:1::]", "[IPv6:::1]")


def test_mailboxes_by_their_parts():
    parts = ["".join(s) for n in range(5) for s in itertools.product('a!.@-"\\ ', repeat=n)]
    literals = ["[1.2.3.4]", "[1.2.3.04]", "[ipv6:1::]", "[IPv6:::1]", "[::1]", "[x:y]", "[1.2.3.4"]
    agrees("email", mailbox, [f"{part}@a" for part in parts])
    agrees("email", mailbox, [f"a@{part}" for part in parts])
    agrees("email", mailbox, parts + [f"{p}@{a}" for p in ("a", '"', '""') for a in literals])


def test_address_literals_of_the_two_readings():
    narrow, wide = known("email"), known("email", widest=True)
    for text in ("a@[001.02.3.4]", "a@[tag:any!thing]", "a@[IPv6:1:2:3:4:5:6:7::]"):
        assert wide.accepts(text)
        assert not narrow.accepts(text)
    assert narrow.accepts("a@[IPv6:1:2:3:4:5:6::]")  # `::` for two groups
    assert narrow.accepts("a@[IPv6:1:2:3:4:5:6:7:8]")


# -- URIs -----------------------------------------------------------------------------------

COMPONENTS = re.compile(r"(?:([^:/?#]+):)?(?://([^/?#]*))?([^?#]*)(?:\?([^#]*))?(?:#(.*))?", re.S)
PLAIN = r"\-A-Za-z0-9._~!$&'()*+,;="  # unreserved and sub-delims of RFC 3986


def made_of(text: str | None, characters: str) -> bool:
    text = re.sub("%[0-9A-Fa-f]{2}", "", text or "")
    return re.fullmatch(f"[{characters}]*", text) is not None


def authority(text: str) -> bool:
    user, _, place = text.rpartition("@")
    match = re.fullmatch(r"(\[[^]]*\]|[^:]*)(:[0-9]*)?", place, re.S)
    if not match or not made_of(user, PLAIN + ":"):
        return False
    host = match[1]
    if not host.startswith("["):
        return made_of(host, PLAIN)
    future = re.fullmatch(f"[vV][0-9a-fA-F]+[.][{PLAIN}:]+", host[1:-1]) is not None
    return future or is_address(ipaddress.IPv6Address)(host[1:-1])


def reference(text: str) -> bool:
    """Split as in appendix B of RFC 3986, then check each component by its own rule."""
    match = COMPONENTS.fullmatch(text)
    assert match
    scheme, place, path, query, fragment = match.groups()
    if scheme is not None and not re.fullmatch("[A-Za-z][A-Za-z0-9+.-]*", scheme):
        return False
    if scheme is None and place is None and ":" in path.split("/")[0]:
        return False
    return (
        (place is None or authority(place))
        and made_of(path, PLAIN + ":@/")
        and made_of(query, PLAIN + ":@/?")
        and made_of(fragment, PLAIN + ":@/?")
    )


def uri(text: str) -> bool:
    return reference(text) and re.match("[^:/?#]+:", text) is not None


def test_uris_by_their_components():
    texts = ["".join(s) for n in range(5) for s in itertools.product("a1:/?#@[]", repeat=n)]
    pieces = [
        "u:p@",
        "[v7.a:b]",
        "[::1]",
        "[v.a]",
        "[1::1.2.3.4]",
        ":80",
        "/%4f",
        "%4",
        "|",
        "\n",
        "é",
        "?#/?",
    ]
    texts += [
        "http://" + "".join(s) for n in (1, 2, 3) for s in itertools.product(pieces, repeat=n)
    ]
    agrees("uri", uri, texts)
    agrees("uri-reference", reference, texts)
