"""Sentences that contain all given keywords, in any inflection and in any order.

The language is an intersection of small automata, which have a few dozen states each:

    well formed  words, single spaces, marks inside; begins with a capital, ends with a full stop
    counted      at most `max_words` words, that is, at most `max_words` - 1 spaces
    contains g   for each group g of inflections: some word of the sentence is in the group

A keyword only counts if it equals a whole word (`docs/languages.md` defines words). So a checker
with a looser definition of words finds the keyword, too. A word in two groups counts for both.

**Size.** The product has a state for each set of remaining groups and each beginning of one of
their words: 600 to 1,400 states for five groups of five words. A limit on the number of words
multiplies that by `max_words`. `gcd.lift` doesn't need the product: it follows tokens through the
factors (`Automaton.factors`).

Source of the idea: keyword automata of Ctrl-G (Zhang et al., arXiv 2406.13892, section 4), which
ignore word boundaries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool

from gcd._automata.automaton import Automaton
from gcd._automata.byte_classes import NUM_BYTES
from gcd._automata.limits import cache_with_price, count_work, spend
from gcd._errors import ConstraintError, StateLimitError, WorkLimitError, check_count, check_kind
from gcd._languages.literal import encodable
from gcd._languages.text.regex import regex

LETTERS = {  # letters that may begin a sentence, and all letters
    "ascii": (r"A-Z", r"A-Za-z"),
    "latin": (r"A-ZÀ-ÖØ-Þ", r"A-Za-zÀ-ÖØ-öø-ÿ"),
    "unicode": (r"\p{Lu}\p{Lt}\p{Lo}", r"\p{L}\p{M}"),
}
MARKS = ",;:"  # marks after a word
JOINERS = "'’-"  # marks inside a word
PAIRS = (('"', '"'), ("(", ")"))  # pairs of marks around words
STOPS = ".!?"
PUNCTUATION = ",;:'’-\""


@dataclass(frozen=True)
class _Alphabet:
    """Parts of regular expressions from which sentences are built."""

    first: str  # pattern of the first word of a sentence
    word: str  # pattern of any word
    mark: str  # pattern of an optional mark after a word
    pairs: tuple[tuple[str, str], ...]  # patterns of opening and closing marks
    between: bytes  # bytes that never occur in a word

    @classmethod
    def of(cls, letters: str, punctuation: str) -> _Alphabet:
        """Build the patterns for an option `letters` and an option `punctuation`."""
        if letters not in LETTERS:
            raise ConstraintError(
                f"expected letters to be one of {', '.join(LETTERS)}, got {letters!r}"
            )
        pairs = [pair for pair in PAIRS if pair[0] in punctuation and pair[1] in punctuation]
        known = {*MARKS, *JOINERS, *(mark for pair in pairs for mark in pair)}
        for mark in punctuation:
            if mark not in known:
                allowed = f'{MARKS}{JOINERS}"()'
                raise ConstraintError(
                    f"expected punctuation from the marks {allowed}, with both brackets or "
                    f"neither, got {mark!r}"
                )
        marks = "".join(mark for mark in MARKS if mark in punctuation)
        apostrophes = "".join(mark for mark in JOINERS if mark in punctuation and mark != "-")
        joiners = apostrophes + ("\\-" if "-" in punctuation else "")
        capital, letter = (f"[{each}0-9]" for each in LETTERS[letters])
        rest = f"{letter}*" + (f"(?:[{joiners}]{letter}+)*" if joiners else "")
        rest += f"[{apostrophes}]?" if apostrophes else ""
        return cls(
            first=capital + rest,
            word=letter + rest,
            mark=f"[{marks}]?" if marks else "",
            pairs=tuple((f"[{a}]", f"[{b}]") for a, b in pairs),
            between=f" {marks}{STOPS}{''.join(a + b for a, b in pairs)}".encode(),
        )

    def sentence(self) -> str:
        """Return the pattern of a sentence."""
        begins, goes_on = self._parts(self.first), self._parts(self.word)
        whole, followed = 0, 1
        longer = f"{begins[followed]}{goes_on[followed]}*{goes_on[whole]}"
        return f"(?:{begins[whole]}|{longer})[{STOPS}]"

    def _parts(self, first: str) -> tuple[str, str]:
        """Return patterns of words at the end of a sentence, and of words that a space follows."""
        inner = f"{first}(?:{self.mark} {self.word})*"
        whole, followed = [first], [f"{first}{self.mark} "]
        for opening, closing in self.pairs:
            whole.append(f"{opening}{inner}{closing}")
            mark = self.mark.rstrip("?")
            behind = f"(?:{closing}{self.mark}|{mark}{closing})" if mark else closing
            followed.append(f"{opening}{inner}{behind} ")
        return f"(?:{'|'.join(whole)})", f"(?:{'|'.join(followed)})"


def keywords(
    groups: Iterable[Iterable[str]],
    *,
    max_words: int | None = None,
    letters: str = "ascii",
    punctuation: str = PUNCTUATION,
) -> Automaton:
    """Return the language of sentences that contain at least one word of each group.

    Args:
        groups: lists of words, such as the inflections of a verb. The groups may occur in any
            order, and only whole words count. Case matters, except in a sentence's first letter.
        max_words: maximum number of words of the sentence, which are separated by single spaces;
            None for no limit.
        letters: `"ascii"`, `"latin"` (adds the letters of Latin-1), or `"unicode"`.
        punctuation: punctuation marks allowed inside the sentence: any of `,;:` after words, `'’-`
            in words, and `""` and `()` around words, not nested. A sentence ends with one of `.!?`,
            which occur only there.

    Raises:
        ConstraintError: there are no groups, a group is empty, a word contains other characters
            than letters and digits, `max_words` is too small to cover all groups, or an option is
            unknown.
        StateLimitError, WorkLimitError: there are too many groups.
    """
    check_kind(letters, str, "letters as str", f"pass one of {', '.join(LETTERS)}")
    check_kind(punctuation, str, "punctuation as str", f"pass some of {PUNCTUATION}")
    alphabet = _Alphabet.of(letters, punctuation)
    concepts = _check(groups)
    if max_words is not None:
        check_count("max_words", max_words, 1)
    with count_work():
        sentences, first, word = _languages(alphabet)
        for words in concepts:
            for each in words:
                if not word.accepts(each):
                    raise ConstraintError(_no_word(each, letters, punctuation))
        capitals = [[w[0].upper() + w[1:] for w in words if len(w[0].upper()) == 1]
                    for words in concepts]  # fmt: skip
        opening = [[word for word in words if first.accepts(word)] for words in capitals]
        try:
            _refuse_few_words(concepts, opening, max_words)
            used = np.any(sentences.transitions >= 0, axis=0)
            language = replace(sentences, factors=(sentences,))
            for words, at_start in zip(concepts, opening, strict=True):
                language &= _contains(words, at_start, alphabet.between, used)
            return language if max_words is None else language & _count_words(max_words, used)
        except (StateLimitError, WorkLimitError) as error:
            raise type(error)(
                error.limit, what=f"a sentence with {len(concepts)} groups of keywords"
            ) from error


def _check(groups: Iterable[Iterable[str]]) -> list[list[str]]:
    """Return the distinct words of each group, or raise `ConstraintError` if they aren't words."""
    if isinstance(groups, str) or not isinstance(groups, Iterable):
        raise ConstraintError(
            f"expected keywords() to get a list of groups of words, got {groups!r}; pass a "
            "list of lists"
        )
    concepts: list[list[str]] = []
    for number, group in enumerate(groups, 1):
        words: list[Any] = [group] if isinstance(group, str) else list(group)
        if isinstance(group, str) or not all(isinstance(word, str) for word in words):
            raise ConstraintError(
                f"expected group {number} of keywords() to be a list of words, got {group!r}; "
                "pass a list of str"
            )
        if not words:
            raise ConstraintError(
                f"expected at least one inflection in group {number} of keywords(), got none; add "
                "one, or remove the group"
            )
        concepts.append(list(dict.fromkeys(map(encodable, words))))
    if not concepts:
        raise ConstraintError(
            "expected at least one group of words for keywords(), got none; add one"
        )
    return concepts


@cache_with_price(maxsize=8)
def _languages(alphabet: _Alphabet) -> tuple[Automaton, Automaton, Automaton]:
    """Return the languages of sentences, of words that may begin a sentence, and of all words."""
    return regex(alphabet.sentence()), regex(alphabet.first), regex(alphabet.word)


def _no_word(text: str, letters: str, punctuation: str) -> str:
    joiners = " ".join(mark for mark in JOINERS if mark in punctuation) or "nothing"
    return (
        f"expected a keyword of letters ({letters}) and digits, joined by {joiners}, got "
        f"{text!r}; change the keyword, or allow more characters with `letters` or `punctuation`"
    )


def _contains(
    words: Sequence[str], capitals: Sequence[str], between: bytes, used: Bool[np.ndarray, "256"]
) -> Automaton:
    """Return the strings of `used` bytes with one of the words, and `between` around it."""
    start, space, other, found = range(4)
    rows = np.full((4, NUM_BYTES), other, np.int32)
    rows[:, list(between)] = space
    rows[start, list(between)] = start  # such as an opening quotation mark
    rows[found] = found
    inside = rows[other]
    table = list(rows)
    for root, texts in ((start, capitals), (space, words)):
        for text in texts:
            state = root
            for byte in text.encode():
                after = int(table[state][byte])
                if after == other:
                    after = table[state][byte] = len(table)
                    table.append(inside.copy())
                state = after
            table[state][list(between)] = found
    delta = np.where(used, np.stack(table), -1)
    return Automaton.from_transitions(delta, np.arange(len(table)) == found)


def _count_words(max_words: int, used: Bool[np.ndarray, "256"]) -> Automaton:
    """Return the strings of `used` bytes that contain fewer than `max_words` spaces."""
    rows = np.where(used, np.arange(max_words, dtype=np.int32)[:, None], -1)
    rows[:, ord(" ")] = np.append(np.arange(1, max_words), -1)
    return Automaton.from_transitions(rows, np.ones(max_words, bool))


def _refuse_few_words(
    concepts: Sequence[Sequence[str]], opening: Sequence[Sequence[str]], max_words: int | None
) -> None:
    """Raise `ConstraintError` if `max_words` words cannot cover every group."""
    if max_words is None or max_words > len(concepts):
        return  # enough for one word per group, after a word that begins the sentence
    everything = (1 << len(concepts)) - 1
    reached, count, later = {0}, 0, _list_coverable(concepts)
    choices = _list_coverable(opening) | {0}
    while everything not in reached:
        spend(len(reached) * len(choices) * 64, "the fewest words")
        reached = {before | more for before in reached for more in choices}
        count, choices = count + 1, later
    if count > max_words:
        raise ConstraintError(
            f"expected max_words of at least {count} for {len(concepts)} groups of keywords, "
            f"got {max_words}; raise max_words"
        )


def _list_coverable(concepts: Sequence[Sequence[str]]) -> set[int]:
    """Return the sets of groups that a single word covers, as bit masks."""
    groups_of: dict[str, int] = {}
    for number, words in enumerate(concepts):
        for word in words:
            groups_of[word] = groups_of.get(word, 0) | 1 << number
    return set(groups_of.values())
