"""What a generation request must satisfy before the engine takes it."""

from __future__ import annotations

from swingshift.core.types import GenerationRequest
from swingshift.engines.sampling import check_sampling
from swingshift.errors import DataError


def check_request(request: GenerationRequest, vocab_size: int, max_model_len: int) -> None:
    """Raise DataError for a request that cannot be computed; names the request, the value and the remedy."""
    name = f"request {request.request_id}"
    if len(request.prefixes) != len(request.budgets):
        raise DataError(f"{name}: {len(request.prefixes)} prefixes but {len(request.budgets)} budgets")
    check_sampling(request.sampling)
    sequences = (request.prompt_ids, *request.prefixes)
    bad = [t for tokens in sequences for t in tokens if not 0 <= t < vocab_size]
    if bad:
        raise DataError(f"{name}: token {bad[0]} is outside the model's vocabulary of {vocab_size}")
    for prefix, budget in zip(request.prefixes, request.budgets, strict=True):
        context = len(request.prompt_ids) + len(prefix)
        if context == 0:
            raise DataError(f"{name}: prompt and prefix are empty; give at least one token")
        if budget < 1:
            raise DataError(f"{name}: a token budget is {budget}; ask for at least one token")
        if context + budget > max_model_len:
            raise DataError(
                f"{name}: prompt and prefix of {context} tokens plus a budget of {budget} exceed the engine's "
                f"{max_model_len} tokens; shorten the prompt or lower "
                "actor_rollout_ref.rollout.response_length"
            )
