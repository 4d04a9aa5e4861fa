"""A single call from a prompt and a type to a value with its probability.

`ask` compiles the type to a constraint and lifts it to the tokens of the model's vocabulary. Then
it finds probable answers, and parses the one whose fields agree best with the model:

    type of the answer                value that is returned
    a type that pydantic validates    an object of this type, parsed by pydantic from JSON
    a JSON schema (a mapping)         a value parsed from JSON
    a list of tools                   a list of tool calls parsed from JSON
    a list of strings                 one of these strings
    a constraint                      the text of the answer

By default at most four prefixes are kept at each step, the most probable ones (beam search). This
costs less than twice as much as greedy decoding and is right more often (`benchmarks.values`).
Bounds then tell how probable the answer is at least. With `particles`, the other prefixes are a
random sample, from which probabilities are estimated. Other arguments are passed to `smc.sample`.

With `tools`, a reply is calls in the model's own format, or an answer. Both kinds of replies are
sampled separately after the same prompt, so each has its own estimate of its probability. In one
sample, few prefixes or none would be of the less probable kind. The kind of reply with the larger
probability is chosen first, and then the best reply of this kind.

Messages become token ids by the tokenizer's chat template, which also gets the tools in the form
that templates expect: `{"type": "function", "function": {"name", "description", "parameters"}}`.
"""

from __future__ import annotations

import html
import inspect
import json
import math
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache, partial
from itertools import islice
from numbers import Integral
from typing import Any, NamedTuple, TypeAlias

from gcd import (
    Automaton,
    CallFormat,
    EmptyLanguageError,
    InfeasibleBudgetError,
    Segments,
    TokenAutomaton,
    Tool,
    Vocabulary,
    call_format,
    choice,
    json_schema,
    lift,
    parse_tools,
    tool_calls,
)
from gcd._languages.json_schema.schema import is_class
from gcd._languages.tools.call_formats import format_of
from gcd._languages.tools.native_calls import answers, thought
from gcd._languages.tools.tool_lists import CONTAINERS, is_schema
from gcd._replies import Parts, read_reply, thinking_format, with_thought
from smc._inference.algorithms import SMC, Discrete, algorithm_of
from smc._inference.arguments import COLDEST, check_options, per_prompt, whole
from smc._inference.execution import hooks_of
from smc._interface.interface import sample
from smc._models.protocol import (
    LanguageModel,
    Messages,
    Prompt,
    apply_template,
    chat_tokenizer,
    check_list,
    check_model,
    check_thoughts,
    is_messages,
    open_tag,
)
from smc._proposals import GCD, Proposal
from smc._proposals.masks import BudgetEffect
from smc._removed import accept_budget
from smc._results.fields import NARROW, Field, FieldValue, leaves, shorten, show_probability
from smc._results.posterior import (
    Posterior,
    Sample,
    content,
    merge,
    rank,
    regroup,
    sufficient_budget,
)
from smc._results.reliability import NORMAL, Reliability

Parser: TypeAlias = Callable[[str], Any]
BEAMS = 4
"""Number of prefixes without `particles`, and of the prefixes that are kept with certainty."""
_PARTICLES = 16
"""Number of particles of other algorithms."""
_SHOWN = 0.001
"""Least lower bound of a probability that is shown."""
_TRIED = 3
"""Number of rejected answers in an error message."""
_CALLS, _ANSWER = '{"calls": ', '{"answer": '
"""Beginnings of the texts in JSON of replies to requests with tools."""


def _branch(document: str) -> str:
    """Return "calls" or "answer" for an answer to a request with tools."""
    return "calls" if document.startswith(_CALLS) else "answer"


@dataclass(frozen=True, repr=False)
class Reply:
    """The answer to a prompt as a value, with its probability if it is known.

    The value is the answer whose fields agree best with the answers that were found, weighted by
    the model's probabilities (minimum Bayes risk, `smc._results.posterior.rank`). So one unlikely
    spelling or title doesn't decide about the other fields.

    Attributes:
        posterior: the posterior over all answers that were found.
        parser: function that converts the text of an answer to a value.
        max_tokens: the budget of the answer.
        heads: with tools or thoughts, the parts of the most probable token sequence of each answer
            of the posterior. With tools, these answers are
            `{"calls": [{"name": ..., "arguments": ...}, ...]}` or `{"answer": ...}`, and their
            fields are those of these texts.
        has_tools: whether the request has tools.
    """

    posterior: Posterior
    parser: Parser
    max_tokens: int
    heads: Mapping[str, Parts] = field(default_factory=dict)
    has_tools: bool = False

    @property
    def value(self) -> Any:
        """The chosen answer, parsed: the best one that its type's validators accept.

        Raises:
            ValueError: no answer has positive probability, or pydantic validators that the
                constraint can't express reject all answers that were found.
        """
        text, value, refused = self._chosen
        if text is None:
            if self._is_impossible:
                raise ValueError(
                    "expected an answer, got none: the model gives every answer within the budget "
                    "probability zero; change the prompt"
                )
            raise ValueError(
                "expected an answer, got none: no prefix that was kept can be completed; pass "
                "particles=16, or change the prompt"
            )
        if text in refused:
            tried = ", ".join(repr(shorten(each)) for each in list(refused)[:_TRIED])
            raise ValueError(
                "expected an answer that the type's validators accept, but they reject all "
                f"{len(refused)} that were found ({tried}); the last error: "
                f"{list(refused.values())[-1]}; use more particles, or change the prompt"
            )
        return value

    @property
    def text(self) -> str | None:
        """The text of `value`, or the best text if validators reject all; None without answer."""
        if self._chosen[0] is None:
            return None
        return self._head.answer if self._head.calls is None else self._head.calls

    @property
    def _head(self) -> Parts:
        document = self._chosen[0] or ""
        return self.heads.get(document, Parts(None, "", None, document))

    @property
    def thought(self) -> str | None:
        """The thought that precedes the answer; None if there is none."""
        return self._head.thought

    @property
    def before(self) -> str:
        """The text between the thought and the calls of tools."""
        return self._head.before

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The calls of tools; empty if `value` is another answer, or without the argument tools."""
        return [] if self._head.calls is None else self.value

    @cached_property
    def branches(self) -> dict[str, FieldValue]:
        """With tools, the probability of "calls" and that of "answer", the larger one first.

        Their standard errors are widened as Student's t distribution is by few degrees of freedom.
        """
        if not self.has_tools or self.posterior.dead:
            return {}
        fields = regroup(
            self.posterior, lambda each: json.dumps({_branch(each.answer.decode()): 1}).encode()
        ).fields()
        found = []
        for name, other in (("calls", "answer"), ("answer", "calls")):
            value, rest = json.dumps(name), fields.get(f"/{other}")
            if rest is None:  # this branch has all answers
                found.append(replace(fields[f"/{name}"].best, value=value))
            else:
                limits = rest.absent_interval
                found.append(FieldValue(value, rest.absent, rest.absent_error, limits))
        found.sort(key=lambda each: -each.probability)
        wider = self.reliability.quantile / NORMAL
        return {each.load(): replace(each, error=wider * each.error) for each in found}

    @property
    def refused(self) -> dict[str, str]:
        """The answers that ranked before `value`, but that a validator rejects, with the errors."""
        return self._chosen[2]

    @property
    def alternatives(self) -> list[Any]:
        """Other values that were found and that validators accept, the best first."""
        chosen, _, refused = self._chosen
        others = (text for text in self._ranked if text != chosen and text not in refused)
        return [value for value, error in map(self._parse, others) if error is None]

    @cached_property
    def _ranked(self) -> list[str]:
        """One text of each value, the best value first; with tools, the likelier branch first."""
        ranked = rank(self.posterior, is_json=self.parser is not str)
        if not self.has_tools:
            return ranked
        best = next(iter(self.branches), None)  # the most probable one
        return sorted(ranked, key=lambda text: _branch(text) != best)

    @cached_property
    def _chosen(self) -> tuple[str | None, Any, dict[str, str]]:
        """The text, the value, and the errors of the texts that ranked before it."""
        refused: dict[str, str] = {}
        for text in self._ranked:
            value, error = self._parse(text)
            if error is None:
                return text, value, refused
            refused[text] = " ".join(str(error).split())
        return next(iter(self._ranked), None), None, refused

    def _parse(self, text: str) -> tuple[Any, Exception | None]:
        """Return the value of a text, and the error of a validator; None if it is valid."""
        try:
            return self.parser(text), None
        except Exception as error:  # a validator may raise anything
            return None, error

    @property
    def probability(self) -> float | None:
        """The posterior probability of the value, of all texts that parse to it.

        None if it isn't known: neither do bounds determine it to within 0.1, nor was it estimated
        from a random sample with the label "estimated". Pass `particles=16` for an estimate.
        `confidence_interval` then has the bounds. Zero if no answer is possible.
        """
        if self._chosen[0] is None:
            return 0.0 if self._is_impossible else None
        low, high = self.confidence_interval or (0.0, 1.0)
        estimated = self.reliability.label == "estimated"
        return min(high, max(low, self._whole[0])) if estimated or high - low <= NARROW else None

    @property
    def _is_impossible(self) -> bool:
        """True if every answer certainly has probability zero."""
        bounds = self.posterior.bounds
        return self.posterior.enumerated or (bounds is not None and bounds.log_upper == -math.inf)

    @property
    def confidence_interval(self) -> tuple[float, float] | None:
        """A 90% interval for the probability; None if nothing is known about it, or without answer.

        Bounds that certainly hold, unless the label is "estimated"; see
        `Posterior.confidence_intervals`.
        """
        return None if self.text is None else self._whole[1]

    @cached_property
    def _whole(self) -> tuple[float, tuple[float, float] | None]:
        """The estimated probability of the value, and its interval."""
        document, found = self._chosen[0], self.posterior
        assert document is not None
        if self.parser is str:
            same = [at for at, text in enumerate(found.texts) if text == document]
            intervals = found.confidence_intervals
            # Several answers that aren't UTF-8 may be shown as one text.
            known = intervals is not None and len(same) == 1
            p = math.fsum(found.probabilities[at] for at in same)
            return p, intervals[same[0]] if known and intervals is not None else None
        wanted, _ = leaves(document)
        each = next(value for value in self.fields[""].values if value.value == wanted)
        return each.probability, found.interval_of(each.probability, each.error, each.interval)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Deprecated name of `confidence_interval`."""
        warnings.warn(
            "Reply.interval is deprecated; use Reply.confidence_interval",
            DeprecationWarning,
            stacklevel=2,
        )
        return self.confidence_interval

    @property
    def reliability(self) -> Reliability:
        """The reliability of the estimated probability."""
        return self.posterior.reliability

    @cached_property
    def fields(self) -> dict[str, Field]:
        """The distribution of the value of each JSON field.

        Empty if the answers are text, as those of a constraint; see `Posterior.fields`.
        """
        return {} if self.parser is str else self.posterior.fields()

    @property
    def budget(self) -> BudgetEffect | None:
        """The probability that the token budget removed; see `Posterior.budget`."""
        return self.posterior.budget

    @property
    def _parts(self) -> list[str]:
        """The texts shown after the answer: probability, label, tokens, and a budget that binds."""
        interval, p = self.confidence_interval, self.probability
        if p is not None:
            known = f"probability {show_probability(p, interval)}"
        elif interval is not None and interval[0] >= _SHOWN:
            known = f"probability at least {math.floor(1000 * interval[0]) / 1000:.3f}"
        else:
            known = "probability unknown"
        parts = [
            known,
            self.reliability.label,
            f"{self.posterior.diagnostics.tokens} tokens computed",
        ]
        parts += map(repr, self.branches.values())
        enough = sufficient_budget(self.posterior) if self.posterior.constraint else 0
        if enough > self.max_tokens:
            parts.append(f"the budget of {self.max_tokens} tokens binds, {enough} wouldn't")
        if self.posterior.stopped is not None:
            parts.append(f"closed early ({self.posterior.stopped})")
        return parts

    def __repr__(self) -> str:
        if self.text is None:
            return "Reply(no answer)"
        return f"Reply({self.text!r}, {', '.join(self._parts)})"

    def _repr_html_(self) -> str:
        """Return what `repr` shows as a table, for notebooks."""
        cells = ["no answer"] if self.text is None else [repr(self.text), *self._parts]
        rows = "".join(f"<tr><td>{html.escape(cell)}</td></tr>" for cell in cells)
        return f"<table>{rows}</table>"


@accept_budget
def ask(
    lm: LanguageModel,
    prompt: Prompt | Messages,
    kind: Any = None,
    *,
    max_tokens: int,
    tools: Any = None,
    style: str | CallFormat | None = None,
    thinking: int | None = None,
    particles: int | None = None,
    proposal: Proposal[Any] | None = None,
    algorithm: str | SMC | Discrete = "auto",
    whitespace: str | None = None,
    literals: str | None = None,
    temperature: float | int = 1.0,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Reply:
    """Ask a language model for a value of a type.

    Args:
        lm: the language model.
        prompt: text, token ids, or messages for the tokenizer's chat template.
        kind: the type of the answer. It can be any type that pydantic validates, such as a pydantic
            model, dataclass, TypedDict, `Literal` or enum. It can also be a JSON schema, a list of
            tools, a list of strings to choose from, or a constraint (lifted or not). The value of a
            constraint is the text of the answer, even if it is JSON. With messages, the chat
            template shows tools to the model. None is for any text, beside `tools`.
        max_tokens: maximum number of tokens of an answer, including EOS (the budget).
        tools: tools that the model may call instead of an answer of type `kind`. The value is then
            a list of calls, or an answer, whichever is more probable (`Reply.branches`).
        style: the format of the calls of `tools`, as for `gcd.tool_calls`; by default that of the
            model (`gcd.call_format`).
        thinking: maximum number of tokens of a thought before the answer, including its tags. The
            prompt may already have opened `<think>`.
        particles: number of distinct prefixes kept at a time: up to half of them, and at most four,
            are the most probable ones, and the others a random sample for estimates; see
            `smc.sample`. By default, at most the four most probable prefixes, and no sample, but 16
            with `tools`, for calls and for answers each. With 1, one answer is drawn.
        proposal: the proposal; `GCD()` by default.
        algorithm: as for `smc.sample`.
        whitespace: of JSON, as for `gcd.json_schema`; "spaced" by default.
        literals: the tokenizations of fixed text, as for `gcd.lift`; "all" by default.
        temperature: as for `smc.sample`; 0 means greedy decoding under the constraint.
        chat_template_kwargs: arguments of the chat template, such as `{"enable_thinking": False}`.
        options: other arguments of `smc.sample`, such as `seed` or `deadline`.

    Raises:
        ConstraintError: the type can't be converted to a constraint.
        ValueError: the type or an option is unsupported, tools are given twice, or `style` is given
            without tools. Or the prompt has messages, but the model's tokenizer has no chat
            template. Or the prompt ends in an open `<think>`, without `thinking`.
        EmptyLanguageError: no answer or no call is valid.
        InfeasibleBudgetError: the budget is shorter than the shortest answer, after a thought of
            `thinking` tokens.

    Warns:
        UserWarning: the chat template doesn't show the tools, or doesn't read an argument.

    These errors are raised before any forward pass. `smc.sample` may raise others.
    """
    check_model(lm)
    if isinstance(prompt, Integral):
        raise ValueError(f"expected a prompt to be text, token ids or messages, got {prompt}")
    [reply] = ask_all(
        lm, [prompt], kind, max_tokens=max_tokens, tools=tools, style=style, thinking=thinking,
        particles=particles, proposal=proposal, algorithm=algorithm, whitespace=whitespace,
        literals=literals, temperature=temperature, chat_template_kwargs=chat_template_kwargs,
        **options,
    )  # fmt: skip
    return reply


@accept_budget
def ask_all(
    lm: LanguageModel,
    prompts: Sequence[Prompt | Messages],
    kind: Any = None,
    *,
    max_tokens: int,
    tools: Any = None,
    style: str | CallFormat | None = None,
    thinking: int | None = None,
    particles: int | None = None,
    proposal: Proposal[Any] | None = None,
    algorithm: str | SMC | Discrete = "auto",
    whitespace: str | None = None,
    literals: str | None = None,
    temperature: float | int = 1.0,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> list[Reply]:
    """Ask for a value of the same type for each prompt, in batches; see `ask` for the arguments."""
    check_model(lm)
    check_list(prompts)
    check_options("smc.ask", options, ask, sample)
    hooks_of(options.get("hooks"), "finished")
    if temperature == 0:  # a single particle, which is almost certain to draw the best token
        if particles is not None or algorithm != "auto":
            raise ValueError(
                f"expected no particles or algorithm with temperature=0, which is greedy decoding, "
                f"got particles={particles}, algorithm={algorithm!r}; omit them"
            )
        temperature, particles = COLDEST, 1
    elif tools is not None and particles is None:
        particles = _PARTICLES
    if isinstance(tools, Iterable) and not isinstance(tools, Mapping):
        tools = list(tools)  # read more than once
    request = _Request.of(lm, kind, tools, style, thinking, whitespace)
    written = _write(lm, prompts, kind if tools is None else tools, chat_template_kwargs, thinking)
    lift_once = cache(partial(request.lift, literals=literals))
    lifts = [lift_once(open_tag(lm, each)) for each in written]
    names, lifts, most = per_prompt(len(written), lifts, max_tokens, options.get("example_ids"))
    N, algorithm = _search_by(particles, algorithm)
    every = list(zip(written, lifts, most, names, strict=True))
    parts = [lifted.parts(n, thinking, N) for _, lifted, n, _ in every]
    rows = [
        (prompt, part, n, len(some) * name + i)
        for some, (prompt, _, n, name) in zip(parts, every, strict=True)
        for i, part in enumerate(some)
    ]
    if len(rows) > len(written):
        options["example_ids"] = [name for *_, name in rows]
    found = iter(sample(
        lm, [prompt for prompt, *_ in rows], [part for _, part, *_ in rows],
        max_tokens=[n for *_, n, _ in rows], particles=N,
        proposal=GCD() if proposal is None else proposal, algorithm=algorithm,
        temperature=temperature, **options,
    ))  # fmt: skip
    return [
        request.reply(lifted, list(islice(found, len(some))), len(lm.encode(prompt)), n)
        for some, (prompt, lifted, n, _) in zip(parts, every, strict=True)
    ]


class _Lifted(NamedTuple):
    """Constraint of a prompt, the format of its thought, and a vocabulary with special tokens.

    `rest` is the number of tokens of a shortest answer after a thought, and `branches` are the
    constraints of calls and of answers, with tools.
    """

    constraint: TokenAutomaton
    marked: Vocabulary
    thinking: CallFormat | None = None
    rest: int = 0
    branches: tuple[TokenAutomaton, ...] = ()

    def parts(
        self, max_tokens: int, thinking: int | None, particles: int
    ) -> Sequence[TokenAutomaton]:
        """Return the constraints to sample: the branches that fit into the budget, if any.

        A single particle is one draw from all replies. If no answer fits after the longest thought,
        an error is raised.
        """
        if thinking is not None and thinking + self.rest > max_tokens:
            where = f"thinking={thinking} with a shortest answer of {self.rest} tokens"
            raise InfeasibleBudgetError(thinking + self.rest, max_tokens, where)
        fitting = [each for each in self.branches if each.fewest_tokens <= max_tokens]
        return [self.constraint] if particles == 1 or not fitting else fitting


@dataclass(frozen=True)
class _Request:
    """Constraint of replies: an answer, or calls of tools, and a thought before them."""

    vocabulary: Vocabulary
    language: Automaton | TokenAutomaton
    parser: Parser
    thinking: int | None = None
    form: CallFormat | None = None
    tools: tuple[Tool, ...] = ()
    branches: tuple[Automaton, ...] = ()

    @classmethod
    def of(
        cls, lm: LanguageModel, kind: Any, tools: Any, style: Any, thinking: Any, whitespace: Any
    ) -> _Request:
        """Compile the arguments of `ask`."""
        thinking = None if thinking is None else whole("thinking", thinking)
        if thinking is not None and thinking < 1:
            raise ValueError(f"expected thinking to be at least 1, got {thinking}; omit it")
        if tools is None and style is not None:
            raise ValueError(f"expected style only with tools, got {style!r}; omit it")
        answer: Automaton | TokenAutomaton | None = None
        parser: Parser = str
        if kind is not None or tools is None:
            answer, parser = constraint_of(kind, whitespace)
        if whitespace is not None and tools is None and parser is str:
            raise ValueError(
                f"expected whitespace only for answers in JSON, got {whitespace!r} with labels or "
                "a constraint; omit it, or pass it to gcd.json_schema"
            )
        if isinstance(answer, TokenAutomaton):
            if tools is not None or thinking is not None:
                raise ValueError(
                    "expected a constraint that isn't lifted, with tools or thinking; omit gcd.lift"
                )
            return cls(lm.vocabulary, answer, parser)
        if tools is None:
            assert answer is not None
            return cls(lm.vocabulary, answer, parser, thinking)
        if _is_tools(kind):
            raise ValueError("expected tools once, got them as kind and as tools; omit kind")
        if style is None:
            tokenizer = getattr(lm, "tokenizer", None)
            style = _style_of(tokenizer, getattr(tokenizer, "chat_template", None))
        form = format_of(style)
        own = form if thinking is None else replace(form, thought=None)
        compiled = partial(tool_calls, tools, style=own, whitespace=whitespace or "spaced")
        language, rest = compiled(choice="auto", answer=answer), answers(own, answer)
        if answer is None:
            calls = language - rest  # text may precede calls
        else:  # keywords of the answer that aren't enforced would forbid a difference
            calls = compiled(choice="required", unknown="ignore", unsupported="ignore")
        every = parse_tools(tools).tools
        return cls(lm.vocabulary, language, parser, thinking, form, every, (calls, rest))

    def lift(self, opened: str | None, literals: str | None) -> _Lifted:
        """Lift the constraint of prompts that end with a tag, or with none."""
        language, vocabulary, way = self.language, self.vocabulary, literals or "all"
        if isinstance(language, TokenAutomaton):
            if literals is not None:
                raise ValueError(
                    f"expected no literals with a lifted constraint, got {literals!r}; pass it to "
                    "gcd.lift"
                )
            return _Lifted(language, vocabulary)
        form, tokens = None, self.thinking
        if tokens is not None:
            form = thinking_format(self.form, vocabulary.special_ids, opened)

        def complete(language: Automaton) -> Automaton | Segments:
            if form is None or tokens is None:
                return language
            return with_thought(language, form, tokens)

        try:
            lifted = lift(complete(language), vocabulary, literals=way)
        except InfeasibleBudgetError as error:  # of the thought, the first segment
            what = "tags included"
            raise InfeasibleBudgetError(error.needed, error.budget, "thinking", what) from None
        branches = []
        for each in self.branches:
            with suppress(EmptyLanguageError):  # the vocabulary can't write them
                branches.append(lift(complete(each), vocabulary, literals=way))
        rest = lifted.fewest_tokens
        if form is not None:
            rest -= lift(thought(form), vocabulary).fewest_tokens - 1
        marked = vocabulary.with_specials(complete(language).specials)
        return _Lifted(lifted, marked, form, rest, tuple(branches))

    def reply(
        self, lifted: _Lifted, parts: Sequence[Posterior], prompt: int, max_tokens: int
    ) -> Reply:
        """Return the reply with the posteriors of its parts, without thoughts and other text."""
        found = merge(parts, lifted.constraint, prompt)
        if self.form is None and self.thinking is None:
            return Reply(found, self.parser, max_tokens)
        heads: dict[str, tuple[float, Parts]] = {}
        eos, parser = set(self.vocabulary.eos_ids), self.parser

        def read(sample: Sample) -> bytes:
            marked = lifted.marked.decode(content(sample.ids, eos))
            parts = read_reply(marked, self.form, self.tools, lifted.thinking)
            document = parts.answer
            if parts.calls is not None:
                document = f"{_CALLS}{parts.calls}}}"
            elif self.form is not None:
                document = f"{_ANSWER}{json.dumps(document) if parser is str else document}}}"
            own = (sample.log_p, parts)
            heads[document] = max(heads.get(document, own), own, key=lambda each: each[0])
            return document.encode()

        def parse(document: str) -> Any:
            if parser is str or _branch(document) == "calls":
                (value,) = json.loads(document).values()
                return value
            return parser(document[len(_ANSWER) : -1])

        read_all = regroup(found, read)
        firsts = {document: head for document, (_, head) in heads.items()}
        if self.form is None:
            return Reply(read_all, parser, max_tokens, firsts)
        return Reply(read_all, parse, max_tokens, firsts, has_tools=True)


@lru_cache(maxsize=8)
def _style_of(tokenizer: Any, template: Any) -> str:
    """Return the name of the format in which a model writes calls."""
    del template  # the model's chat template, which is only a part of the cache's key
    return call_format("" if tokenizer is None else tokenizer)


def _search_by(
    particles: int | None, algorithm: str | SMC | Discrete
) -> tuple[int, SMC | Discrete]:
    """Return the number of particles, and the algorithm with its options."""
    count = whole("particles", _PARTICLES if particles is None else particles)
    found = algorithm_of(algorithm, count)
    if isinstance(found, SMC) or not isinstance(algorithm, str):
        return count, found
    if particles is None:
        return BEAMS, Discrete(kept=BEAMS)  # nothing is random
    return count, Discrete(kept=min(BEAMS, max(0, count) // 2))


def constraint_of(
    kind: Any, whitespace: str | None = None
) -> tuple[Automaton | TokenAutomaton, Parser]:
    """Return the constraint for a type, and the function that parses its answers."""
    is_list = isinstance(kind, Sequence) and not isinstance(kind, str) and len(kind) > 0
    if is_list and all(isinstance(each, str) for each in kind):
        return choice(kind), str
    if isinstance(kind, Automaton | TokenAutomaton):
        return kind, str
    whitespace = whitespace or "spaced"
    if is_class(kind):
        language = json_schema(kind, whitespace=whitespace)
        from pydantic import TypeAdapter  # the schema of a class needs pydantic, too

        adapter = kind if isinstance(kind, TypeAdapter) else TypeAdapter(kind)
        return language, adapter.validate_json
    if _is_tools(kind):
        return tool_calls(kind, whitespace=whitespace), json.loads
    if isinstance(kind, Mapping | bool):
        return json_schema(kind, whitespace=whitespace), json.loads
    raise ValueError(
        "expected a type, a JSON schema, a list of tools or of strings, or a constraint (whose "
        f"value is text), got {kind!r}; for a pattern use gcd.regex(...)"
    )


def _is_tools(kind: Any) -> bool:
    """Return whether a type is a list of tools, or a mapping that contains such a list."""
    if isinstance(kind, Mapping):
        return not is_schema(kind) and any(isinstance(kind.get(k), list | dict) for k in CONTAINERS)
    if isinstance(kind, str) or not isinstance(kind, Sequence) or not kind:
        return False
    return all(isinstance(each, Mapping) or callable(each) for each in kind)


def _write(
    lm: LanguageModel,
    prompts: Sequence[Any],
    kind: Any,
    arguments: Mapping[str, Any] | None,
    thinking: int | None,
) -> list[Prompt]:
    """Convert messages to token ids; without `thinking`, refuse prompts with an open `<think>`.

    The ids end with the template's generation prompt, after which the model writes its answer.
    """
    chats = [prompt for prompt in prompts if is_messages(prompt)]
    if arguments is not None and not (isinstance(arguments, Mapping) and chats):
        raise ValueError(
            "expected chat_template_kwargs to be a mapping, and the prompt to be messages, got "
            f"{arguments!r} with {'messages' if chats else 'text or token ids'}; pass messages and "
            'a mapping such as {"enable_thinking": False}'
        )
    tools = _tools_for_chat(kind) if chats and _is_tools(kind) else []
    written = [
        _apply_template(lm, prompt, tools, arguments or {}) if is_messages(prompt) else prompt
        for prompt in prompts
    ]
    for prompt in written if thinking is None else ():
        check_thoughts(lm, prompt)
    return written


def _apply_template(
    lm: LanguageModel,
    messages: Messages,
    tools: list[dict[str, Any]],
    arguments: Mapping[str, Any],
) -> list[int]:
    """Apply the tokenizer's chat template to messages; warn of what the template doesn't read."""
    tokenizer = chat_tokenizer(lm)
    template, chat = tokenizer.chat_template, list(messages)
    options = {"add_generation_prompt": True, **arguments}
    known = {*inspect.signature(tokenizer.apply_chat_template).parameters, "enable_thinking"}
    unread = [name for name in arguments if not re.search(rf"\b{name}\b", str(template))]
    unread = [name for name in unread if name not in known]
    if unread:
        warnings.warn(
            f"expected a chat template that reads {', '.join(unread)}, got one that doesn't; check "
            "the names in chat_template_kwargs",
            stacklevel=2,
        )
    ids = apply_template(tokenizer, chat, **{"tools": tools, **options} if tools else options)
    texts = json.dumps(chat, default=str)
    hidden = [name for each in tools if (name := each["function"]["name"]) not in texts]
    if hidden and ids == apply_template(tokenizer, chat, **options):
        warnings.warn(
            f"expected a chat template that shows tools to the model, got one without tools; "
            f"describe them in a message ({', '.join(hidden)})",
            stacklevel=2,
        )
    return ids


def _lower_types(schema: Any) -> Any:
    """Return a schema with the types of Gemini's dialect (`STRING`) as JSON Schema writes them."""
    if isinstance(schema, list):
        return [_lower_types(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {k: v if k in ("enum", "const") else _lower_types(v) for k, v in schema.items()}
    kind = found.get("type")
    return found | {"type": kind.lower()} if isinstance(kind, str) else found


def _tools_for_chat(tools: Any) -> list[dict[str, Any]]:
    """Return tools in the form that chat templates expect."""
    classes = {each.__name__: each for each in tools if isinstance(each, type)}
    found = []
    for tool in parse_tools(tools).tools:
        parameters = tool.schema
        if tool.name in classes:  # gcd's own schema of a class has patterns that aren't JSON
            from pydantic import TypeAdapter

            parameters = TypeAdapter(classes[tool.name]).json_schema()
        parameters = _lower_types(parameters)
        function = {"name": tool.name, "description": tool.description, "parameters": parameters}
        found.append({"type": "function", "function": function})
    return found
