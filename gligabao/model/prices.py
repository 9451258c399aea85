"""What model calls cost, in US dollars.

Prices come from the library genai-prices (its bundled table; nothing is fetched), and for models that it does not
know from the setting `prices`. Each call is priced on its own: some models charge more for long prompts, so
totals of a run cannot be priced afterwards.
"""

import logging
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from genai_prices import extract_usage

from gligabao.config import ModelPrice
from gligabao.model.reply import RawUsage
from gligabao.records import Usage

log = logging.getLogger(__name__)

SEARCH_FEE_USD = Decimal("0.01")
"""Of one web search at the provider, on top of the tokens."""

_MILLION = Decimal(1_000_000)


class Prices:
    """The price of a call, by model. Safe to share."""

    def __init__(self, own: Mapping[str, ModelPrice]) -> None:
        self._own = own

    def is_known(self, model: str) -> bool:
        """Tell whether calls of this model can be priced."""
        return model in self._own or _library_cost(model, RawUsage(input_tokens=1)) is not None

    def price(self, model: str, raw: RawUsage) -> Usage:
        """Return the usage of one call with its cost; the cost is None when the model has no known price."""
        own = self._own.get(model)
        cost = _own_cost(own, raw) if own else _library_cost(model, raw)
        return Usage(raw.prompt_tokens, raw.output_tokens, cost)


def _own_cost(price: ModelPrice, raw: RawUsage) -> Decimal:
    per_million = [
        (raw.input_tokens, price.input),
        (raw.cache_creation_input_tokens or 0, price.cache_write),
        (raw.cache_read_input_tokens or 0, price.cache_read),
        (raw.output_tokens, price.output),
    ]
    tokens = sum((Decimal(count) * Decimal(str(dollars)) for count, dollars in per_million), Decimal(0))
    searches = (raw.server_tool_use.web_search_requests or 0) if raw.server_tool_use else 0
    return tokens / _MILLION + searches * SEARCH_FEE_USD


def _library_cost(model: str, raw: RawUsage) -> Decimal | None:
    extras = raw.model_extra or {}
    cost = _cost(model, raw.model_dump(exclude_none=True))
    if cost is None and extras:
        # The counts were checked, their details were not: which share was kept for an hour, or was thinking.
        cost = _cost(model, raw.model_dump(exclude_none=True, exclude=set(extras)))
        if cost is not None:
            names = ", ".join(sorted(extras))
            log.warning("a call of %s is priced without the impossible details of its usage (%s)", model, names)
    return cost


def _cost(model: str, usage: dict[str, Any]) -> Decimal | None:
    try:
        answer = {"model": model, "usage": usage}
        return Decimal(extract_usage(answer, provider_id="anthropic").calc_price().total_price)
    except (LookupError, ValueError):
        return None
