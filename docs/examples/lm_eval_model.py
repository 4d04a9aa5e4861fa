"""lm-evaluation-harness: the model `gcd`, which answers `generate_until` in a requested form.

Install it with `pip install 'lm-eval[hf]' 'globally-constrained-decoding[models]'`. Usage:

    import lm_eval, lm_eval_model
    lm_eval.simple_evaluate("gcd", "pretrained=HuggingFaceTB/SmolLM2-135M-Instruct", tasks=[...])

In the task, `generation_kwargs` has the form of the answer, as a value or as the name of a
document's field, so that each document may have its own:

    {"max_gen_toks": 40, "json_schema": {"type": "object", ...}}    or "json_schema": "schema"
    {"max_gen_toks": 8, "choices": [" yes", " no"]}                 or "choices": "options"

Each answer is finished within `max_gen_toks`, so `until` isn't applied to it. Other requests, and
`loglikelihood`, are those of the harness's model `hf`.
"""

from __future__ import annotations

from typing import Any

import smc

try:
    from lm_eval.api.registry import register_model
    from lm_eval.models.huggingface import HFLM
    from lm_eval.models.utils import normalize_gen_kwargs
except ModuleNotFoundError as error:
    raise ImportError(f"expected {error.name}; run `pip install 'lm-eval[hf]'`") from error


@register_model("gcd")
class FinishedLM(HFLM):
    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Answer each request that names a form with `smc.ask`."""
        free = [each for each in requests if kind_of(each) is None]
        texts = iter(super().generate_until(free, disable_tqdm) if free else ())
        lm = smc.TransformersLM(self.model, self.tokenizer)
        return [
            next(texts) if kind_of(each) is None else self.ask(lm, each, seed)
            for seed, each in enumerate(requests)
        ]

    def ask(self, lm: smc.TransformersLM, request: Any, seed: int) -> str:
        options = normalize_gen_kwargs(request.args[1], self.max_gen_toks)
        draw = {"temperature": options.get("temperature", 1.0), "particles": 1, "seed": seed}
        reply = smc.ask(
            lm, request.args[0], kind_of(request), max_tokens=options["max_gen_toks"],
            **draw if options["do_sample"] else {},
        )  # fmt: skip
        text = reply.text or ""
        self.cache_hook.add_partial("generate_until", request.args, text)
        return text


def kind_of(request: Any) -> Any:
    """Return the form of a request's answer, a schema or a list of labels; None without one."""
    kind = request.args[1].get("json_schema", request.args[1].get("choices"))
    return request.doc[kind] if isinstance(kind, str) else kind
