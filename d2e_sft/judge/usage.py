"""What a judge has cost, and what it is going to."""

from __future__ import annotations

from dataclasses import dataclass

from d2e_sft.judge.messages import Prompt, Reply, guess_tokens
from d2e_sft.util.errors import UserError


@dataclass(frozen=True)
class Prices:
    """USD per million tokens."""

    prompt: float
    completion: float

    def of(self, prompt_tokens: int, completion_tokens: int) -> float:
        """The price of so many tokens in USD."""
        return (prompt_tokens * self.prompt + completion_tokens * self.completion) / 1e6


@dataclass
class Usage:
    """What has been asked so far.

    Attributes:
        asked: replies that were received.
        cached: replies that were cached by an earlier run, and cost nothing now.
        retried: requests sent once more since the server throttled, failed, stalled or dropped them.
        reasked: prompts asked a second time since the first reply did not have the required form.
        undecided: samples without a usable reply even so.
        cut_off: received replies that ended at the token limit.
        prompt_tokens, completion_tokens: of the received replies. A request that failed midway may have been charged
            too; no server tells.
        guessed: whether a server left some tokens uncounted, so that they were guessed from the text's length.
    """

    asked: int = 0
    cached: int = 0
    retried: int = 0
    reasked: int = 0
    undecided: int = 0
    cut_off: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    guessed: bool = False

    def add(self, prompt: Prompt, reply: Reply) -> tuple[int, int]:
        """Count a received reply; its tokens, of the prompt and of the reply."""
        self.asked += 1
        self.cut_off += reply.cut_off
        self.guessed |= reply.prompt_tokens is None or reply.completion_tokens is None
        asked, answered = reply.prompt_tokens, reply.completion_tokens
        tokens = (
            guess_tokens(prompt.system) + guess_tokens(prompt.user) if asked is None else asked,
            guess_tokens(reply.text) if answered is None else answered,
        )
        self.prompt_tokens += tokens[0]
        self.completion_tokens += tokens[1]
        return tokens

    def spent(self, prices: Prices | None) -> str:
        """The cost so far, or the tokens where no price is known."""
        about = "about " if self.guessed else ""
        if prices is None:
            return f"{about}{self.prompt_tokens + self.completion_tokens:,} tokens"
        return f"{about}${prices.of(self.prompt_tokens, self.completion_tokens):.4f}"

    def describe(self, prices: Prices | None) -> str:
        """All counts on one line."""
        about = "about " if self.guessed else ""
        cut_off = f", {self.cut_off:,} cut off (raise --judge-max-tokens)" if self.cut_off else ""
        return (
            f"{self.asked:,} replies received, {self.cached:,} already cached; {self.retried:,} requests retried, "
            f"{self.reasked:,} prompts re-asked, {self.undecided:,} undecided{cut_off}; "
            f"{about}{self.prompt_tokens:,} prompt + {self.completion_tokens:,} reply tokens"
            + ("" if prices is None else f", {self.spent(prices)}")
        )


@dataclass
class Budget:
    """What a run may cost: each request's most is put aside before it is sent, and the rest given back afterwards.

    A request that broke off may have been charged, so what was put aside for it stays spent.

    Args:
        prices: None where there is no limit.
        limit: in USD; None for no limit.
        max_tokens: of one reply.
    """

    prices: Prices | None
    limit: float | None
    max_tokens: int
    spent: float = 0.0

    def reserve(self, prompt: Prompt) -> None:
        """Put aside what a request may cost at most.

        Raises:
            UserError: together with what is spent, and put aside for others, that is more than the limit.
        """
        if self.limit is None:
            return
        most = self._most(prompt)
        if self.spent + most > self.limit:
            raise UserError(
                f"the next request may cost ${most:.4f} and ${self.spent:.4f} are spent or on their way; expected at "
                f"most ${self.limit:g} together (--judge-max-cost)",
                remedy="raise it and run again: what is kept is not asked for once more",
            )
        self.spent += most

    def settle(self, prompt: Prompt, tokens: tuple[int, int]) -> None:
        """A request has cost so many tokens, of the prompt and of the reply."""
        if self.limit is not None and self.prices is not None:
            self.spent += self.prices.of(*tokens) - self._most(prompt)

    def _most(self, prompt: Prompt) -> float:
        asked = guess_tokens(prompt.system) + guess_tokens(prompt.user)
        return 0.0 if self.prices is None else self.prices.of(asked, self.max_tokens)


@dataclass(frozen=True)
class Estimate:
    """What a list of prompts is going to cost at most, besides second questions after malformed replies.

    Attributes:
        requests: prompts that have to be asked, each once.
        cached: prompts whose reply is cached.
        prompt_tokens: of the requests.
        most_completion_tokens: if every reply reaches its limit.
        counted: whether the prompt's tokens were counted with the model's tokenizer, or guessed.
        most_cost: in USD; None without prices.
    """

    requests: int
    cached: int
    prompt_tokens: int
    most_completion_tokens: int
    counted: bool
    most_cost: float | None

    def __str__(self) -> str:
        how = "counted" if self.counted else "guessed at 4 characters a token"
        if self.most_cost is not None:
            cost = f"at most ${self.most_cost:.4f}"
        else:
            cost = "a model of one's own" if self.counted else "no price given (--judge-price)"
        return (
            f"{self.requests:,} requests ({self.cached:,} replies already cached), {self.prompt_tokens:,} prompt "
            f"tokens ({how}), at most {self.most_completion_tokens:,} reply tokens; {cost}; "
            "a malformed reply costs one request more"
        )
