"""Each adapter of docs/examples with its real package and SmolLM2. See `make examples`."""

from __future__ import annotations

import json
from typing import Literal

import datasets
import decision_server
import inspect_ai
import inspect_provider  # noqa: F401  (registers the provider)
import instructor
import lm_eval
import lm_eval_model  # noqa: F401  (registers the model)
import outlines
import outlines_generator
import pytest
import retry_free
from inspect_ai.dataset import Sample
from inspect_ai.model import ResponseSchema
from inspect_ai.scorer import CORRECT, INCORRECT, Score, accuracy, scorer
from inspect_ai.solver import generate
from inspect_ai.util import json_schema
from pydantic import BaseModel, field_validator
from starlette.testclient import TestClient

import smc
from experiments.models import SMOLLM2, resolve

TEXT = 'The red chair costs 20 dollars.\n{"item": "red chair", "price": 20}\n'
REVIEWS = """Review: I loved every minute of it. Sentiment: positive
Review: It took two hours to get there. Sentiment: neutral
Review: {} Sentiment:"""
COLD = "The soup was cold and the waiter was rude."


class Chair(BaseModel):
    item: str
    price: int


@pytest.fixture(scope="module")
def lm():
    return smc.TransformersLM.from_pretrained(resolve(SMOLLM2))


def test_outlines_finishes_answers_in_batches_beams_and_samples(lm):
    model = outlines.from_transformers(lm.model, lm.tokenizer)
    free = outlines.Generator(model, Chair)("Describe a chair.", max_new_tokens=12)
    with pytest.raises(json.JSONDecodeError):
        json.loads(free)
    make = outlines_generator.finished_generator(model, Chair, 12)
    beams = {"num_beams": 2, "num_return_sequences": 2}
    texts = [
        make("Describe a chair.", max_new_tokens=12),
        *make.batch(["Describe a chair.", "The red one"], max_new_tokens=12),
        *make("Describe a chair.", max_new_tokens=12, **beams),
        *make("A chair", max_new_tokens=12, do_sample=True, num_return_sequences=2),
    ]
    for text in texts:
        Chair.model_validate_json(text)
    label = outlines_generator.finished_generator(model, Literal["yes", "no"], 3)
    assert label("Is it?", max_new_tokens=3) in ("yes", "no")
    with pytest.raises(ValueError, match="expected max_new_tokens to equal the budget 12, got 5"):
        make("Describe a chair.", max_new_tokens=5)


DOCUMENTS = [
    {"text": COLD, "options": [" positive", " negative"], "answer": " negative"},
    {"text": "A great day!", "options": [" positive", " neutral"], "answer": " positive"},
]


def task(name, **settings):
    documents = {"test": datasets.Dataset.from_list(DOCUMENTS)}
    return {
        "task": name, "custom_dataset": lambda **_: documents, "test_split": "test",
        "doc_to_text": REVIEWS.format("{{text}}"), "doc_to_target": "{{answer}}",
    } | settings  # fmt: skip


def is_valid(doc, results):
    """Return the metric of an answer that should be JSON."""
    try:
        Chair.model_validate_json(results[0])
    except ValueError:
        return {"valid": 0.0}
    return {"valid": 1.0}


def test_lm_eval_scores_answers_of_the_requested_form():
    kwargs = {"max_gen_toks": 12, "until": ["\n"]}
    free = {
        "output_type": "generate_until", "process_results": is_valid, "generation_kwargs": kwargs,
        "metric_list": [{"metric": "valid", "aggregation": "mean", "higher_is_better": True}],
    }  # fmt: skip
    form = kwargs | {"json_schema": Chair.model_json_schema()}
    tasks = [
        task("free", **free),
        task("json", **free | {"generation_kwargs": form}),
        task("drawn", **free | {"generation_kwargs": form | {"temperature": 1.0}}),
        task(
            "chosen", output_type="generate_until", metric_list=[{"metric": "exact_match"}],
            generation_kwargs=kwargs | {"choices": "options"},
        ),
        task(
            "ranked", output_type="multiple_choice", doc_to_choice="{{options}}",
            doc_to_target="{{options.index(answer)}}", target_delimiter="",
        ),
    ]  # fmt: skip
    model = f"pretrained={resolve(SMOLLM2)},device=cpu"
    found = lm_eval.simple_evaluate("gcd", model, tasks=tasks, bootstrap_iters=0)["results"]
    assert found["free"]["valid,none"] == 0
    assert found["json"]["valid,none"] == found["drawn"]["valid,none"] == 1
    assert found["chosen"]["exact_match,none"] == found["ranked"]["acc,none"] == 1


@scorer(metrics=[accuracy()])
def finished():
    async def score(state, target):
        known = state.output.metadata
        value = Chair.model_validate_json(state.output.completion)
        assert 0 <= known["confidence_interval"][0] <= known["confidence_interval"][1] <= 1
        assert known["fields"]["/price"][0] == value.price
        return Score(value=CORRECT if str(value.price) == target.text else INCORRECT)

    return score


def test_inspect_evaluates_answers_that_follow_the_schema(tmp_path):
    schema = ResponseSchema(name="chair", json_schema=json_schema(Chair))
    dataset = [Sample(input=f"{TEXT}The old table costs 45 dollars.", target="45")]
    solver = generate(response_schema=schema, max_tokens=20)
    given = {"model": f"gcd/{resolve(SMOLLM2)}", "log_dir": str(tmp_path), "display": "none"}
    [log] = inspect_ai.eval(inspect_ai.Task(dataset, solver=solver, scorer=finished()), **given)
    assert log.status == "success", log.error
    assert log.results.scores[0].metrics["accuracy"].value == 1
    [log] = inspect_ai.eval(inspect_ai.Task(dataset), **given)
    assert log.status == "error"
    assert "expected a response_schema" in log.error.message


def test_instructors_client_needs_no_retries(lm):
    client, seen = retry_free.from_lm(lm), []
    assert isinstance(client, instructor.Instructor)
    client.on("completion:response", seen.append)
    messages = [{"role": "user", "content": "The red chair costs 20 dollars."}]
    given = {"messages": messages, "max_tokens": 20, "max_retries": 0}
    chair, reply = client.create_with_completion(response_model=Chair, **given)
    assert isinstance(chair, Chair)
    assert chair.price == 20
    assert seen == [reply]
    assert 0 <= reply.confidence_interval[0] <= reply.confidence_interval[1] <= 1
    chairs = client.chat.completions.create(response_model=list[Chair], **given)
    assert all(isinstance(each, Chair) for each in chairs)

    class Other(Chair):
        @field_validator("item")
        @classmethod
        def is_other(cls, item):
            if item == chair.item:
                raise ValueError("expected another item")
            return item

    with pytest.warns(Warning, match="is_other"):
        other = client.create(response_model=Other, **given)
    assert other.item != chair.item
    with pytest.raises(ValueError, match="expected no context"):
        client.create(response_model=Chair, context={"a": 1}, **given)


@pytest.mark.parametrize("path", ["/v1/choose", "/v1/systemone"])
def test_the_server_decides_and_refuses_bad_input(lm, path):
    client = TestClient(decision_server.decision_app(lm))
    prompt = REVIEWS.format(COLD)
    found = client.post(path, json={"prompt": prompt, "options": [" positive", " negative"]})
    assert found.status_code == 200
    assert found.json()["choice"] == " negative"
    assert sum(p for _, p in found.json()["probabilities"]) == pytest.approx(1)

    messages = [{"role": "user", "content": "Is 'win money now' spam, on a scale of 1 to 3?"}]
    fields = {"spam": [True, False], "a/b~c": [1, 2, 3]}
    found = client.post(path, json={"prompt": messages, "fields": fields}).json()
    assert found["choice"].keys() == found["probabilities"].keys() == fields.keys()
    for name, shares in found["probabilities"].items():
        assert {value for value, _ in shares} <= {*fields[name]}
        assert sum(p for _, p in shares) == pytest.approx(1)

    for body, message in [
        (b"{", "Invalid JSON"),
        (b"[" * 10_000, "recursion limit"),
        (b"[]", "body: "),
        (b"{}", "prompt: "),
        (b'{"prompt": "a", "option": ["b"]}', "option: "),
        (b'{"prompt": "a"}', "expected either options or fields"),
        (b'{"prompt": "a", "options": []}', "at least one option"),
        (b'{"prompt": "a", "options": ["b", "b"]}', "distinct options"),
        (b'{"prompt": "a", "fields": {"b": [1, 1.0]}}', "distinct values"),
        (b'{"prompt": [{}], "options": ["b"]}', "chat template"),
        (b'{"prompt": [{"role": "user"}], "fields": {"b": [1]}}', "chat template"),
        (b'{"prompt": "", "options": ["b"]}', "at least one token"),
        (json.dumps({"prompt": "a " * 9000, "options": ["b"]}).encode(), "context of 8192"),
    ]:
        found = client.post(path, content=body)
        assert found.status_code == 400, body[:40]
        assert message in found.json()["error"], body[:40]
        assert "\n" not in found.json()["error"]
    assert client.get(path).status_code == 405
