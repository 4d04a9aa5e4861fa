"""Starlette: a server of decisions, with the probability of each option or of each field's values.

Install it with `pip install starlette uvicorn 'globally-constrained-decoding[models,pydantic]'`.
Run it with `uvicorn.run(decision_app(lm))`. Requests to `/v1/choose` or `/v1/systemone`:

    {"prompt": "...", "options": [" yes", " no"]}
    {"prompt": [{"role": "user", "content": "..."}], "fields": {"spam": [true, false]}}
"""

from __future__ import annotations

import smc

try:
    from anyio import CapacityLimiter, to_thread
    from pydantic import BaseModel, ValidationError
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route
except ModuleNotFoundError as error:
    raise ImportError(f"expected {error.name}; run `pip install starlette pydantic`") from error


class Question(BaseModel, extra="forbid", strict=True):
    prompt: str | list[dict[str, str]]
    options: list[str] | None = None
    fields: dict[str, list[str | bool | int | float | None]] | None = None


def decide(lm: smc.LanguageModel, body: bytes) -> dict[str, object]:
    asked = Question.model_validate_json(body)
    if (asked.options is None) == (asked.fields is None):
        raise ValueError("expected either options or fields, got both or neither")
    if asked.options is not None:
        [found] = smc.choose(lm, [asked.prompt], asked.options)
        shares = zip(found.options, found.probabilities, strict=True)
        return {"choice": found.best, "probabilities": [*shares]}
    whole, *fields = smc.joint(lm, asked.prompt, asked.fields).fields().values()
    shares = [[(each.load(), each.probability) for each in field.values] for field in fields]
    found = dict(zip(asked.fields, shares, strict=True))
    return {"choice": whole.best.load(), "probabilities": found}


def decision_app(lm: smc.LanguageModel) -> Starlette:
    async def answer(request: Request) -> JSONResponse:
        try:
            body = await request.body()
            return JSONResponse(await to_thread.run_sync(decide, lm, body, limiter=one))
        except ValidationError as error:
            first = error.errors()[0]
            message = f"{'.'.join(map(str, first['loc'])) or 'body'}: {first['msg']}"
        except ValueError as error:
            message = str(error)
        return JSONResponse({"error": message}, status_code=400)

    one = CapacityLimiter(1)  # requests use the model one after another
    routes = [Route(f"/v1/{name}", answer, methods=["POST"]) for name in ("choose", "systemone")]
    return Starlette(routes=routes)
