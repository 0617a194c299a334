"""Count and limit the cost of a judge."""

from __future__ import annotations

from dataclasses import dataclass

from d2e_sft.judge.messages import Prompt, Reply, guess_tokens
from d2e_sft.judge.options import JudgeOptions
from d2e_sft.util.errors import UserError


@dataclass
class Usage:
    """Counts of everything asked so far, and their cost.

    Attributes:
        options: Prices, the limit in USD, and the token limit of one reply.
        asked: Replies received.
        cached: Replies found in the cache.
        retried: Requests sent again because the server throttled, failed, stalled or dropped them.
        reasked: Prompts asked a second time because the first reply did not have the required form.
        undecided: Samples that still have no usable reply after that.
        cut_off: Replies that ended at the token limit.
        prompt_tokens, completion_tokens: Tokens of the received replies; failed requests may have been charged too.
        guessed: Whether some tokens were estimated from the text's length, because the server did not count them.
        charged: USD spent or reserved for open requests, if there is a limit.
    """

    options: JudgeOptions
    asked: int = 0
    cached: int = 0
    retried: int = 0
    reasked: int = 0
    undecided: int = 0
    cut_off: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    guessed: bool = False
    charged: float = 0.0

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Return the price of these numbers of tokens in USD; 0 without prices."""
        price_in, price_out = self.options.prices or (0.0, 0.0)
        return (prompt_tokens * price_in + completion_tokens * price_out) / 1e6

    def reserve(self, prompt: Prompt) -> None:
        """Reserve a request's highest cost, also if it breaks off (it may be charged); UserError beyond the limit."""
        most = self.cost(prompt.guessed_tokens, self.options.max_tokens)
        limit = self.options.max_cost
        if limit is not None and self.charged + most > limit:
            raise UserError(
                f"the next request may cost ${most:.4f} and ${self.charged:.4f} are spent or reserved; expected at "
                f"most ${limit:g} together (--judge-max-cost)",
                remedy="raise it and run again: kept replies are not asked for again",
            )
        self.charged += most

    def release(self, prompt: Prompt) -> None:
        """Cancel the reservation of a request that cost nothing."""
        self.charged -= self.cost(prompt.guessed_tokens, self.options.max_tokens)

    def add(self, prompt: Prompt, reply: Reply) -> None:
        """Count a received reply, and replace its request's reservation by its cost."""
        self.asked += 1
        self.cut_off += reply.cut_off
        asked, answered = reply.prompt_tokens, reply.completion_tokens
        self.guessed |= asked is None or answered is None
        asked = prompt.guessed_tokens if asked is None else asked
        answered = guess_tokens(reply.text) if answered is None else answered
        self.prompt_tokens += asked
        self.completion_tokens += answered
        self.release(prompt)
        self.charged += self.cost(asked, answered)

    def spent(self) -> str:
        """Return the cost so far, or the tokens if no price is known."""
        about = "about " if self.guessed else ""
        if self.options.prices is None:
            return f"{about}{self.prompt_tokens + self.completion_tokens:,} tokens"
        return f"{about}${self.cost(self.prompt_tokens, self.completion_tokens):.4f}"

    def describe(self) -> str:
        """Return all counts on one line, with the cost if prices are known."""
        about = "about " if self.guessed else ""
        cut_off = f", {self.cut_off:,} cut off (raise --judge-max-tokens)" if self.cut_off else ""
        return (
            f"{self.asked:,} replies received, {self.cached:,} already cached; {self.retried:,} requests retried, "
            f"{self.reasked:,} prompts re-asked, {self.undecided:,} undecided{cut_off}; "
            f"{about}{self.prompt_tokens:,} prompt + {self.completion_tokens:,} reply tokens"
            + ("" if self.options.prices is None else f", {self.spent()}")
        )
